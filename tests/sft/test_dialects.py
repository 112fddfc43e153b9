"""Layouts of chat rows: what each becomes, and by which reason each bad row is rejected."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import ConfigError
from schemas.sft_fields import ROLES, Dialect, FieldMapping
from tasks.run.rejects import RowRejected
from tasks.sft.chat.dialects import Conversation, normalise

DEFAULT = FieldMapping()
USER = {"role": "user", "content": "Q"}
ANSWER = {"role": "assistant", "content": "A"}
SYSTEM = {"role": "system", "content": "S"}
CALLS = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"x": 1, "y": None}}}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def sharegpt(*turns: tuple[str, str]) -> list[dict[str, str]]:
    return [{"from": role, "value": text} for role, text in turns]


def messages(row: dict[str, Any], dialect: Dialect = Dialect.AUTO, **fields: Any) -> list[dict[str, Any]]:
    return normalise(row, dialect, FieldMapping(**fields)).messages


def rejection(row: dict[str, Any], dialect: Dialect = Dialect.AUTO, **fields: Any) -> RowRejected:
    with pytest.raises(RowRejected) as caught:
        normalise(row, dialect, FieldMapping(**fields))
    return caught.value


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([USER, ANSWER], [USER, ANSWER]),
        ([ANSWER], [ANSWER]),
        (
            [{"role": role, "content": "x"} for role in (*ROLES, "function")],
            [{"role": role, "content": "x"} for role in (*ROLES, "tool")],
        ),
        # Empty texts and texts beyond ASCII.
        ([user(""), assistant("")], [user(""), assistant("")]),
        ([user("ä\U0001f600"), assistant("日本\u2028")], [user("ä\U0001f600"), assistant("日本\u2028")]),
        # Content lists.
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "a"}, "b", {"type": "text", "text": "ü"}],
                },
                {"role": "assistant", "content": []},
            ],
            [user("abü"), assistant("")],
        ),
        # Null or absent content needs tool calls.
        (
            [
                USER,
                {"role": "assistant", "content": None, "tool_calls": CALLS},
                {"role": "assistant", "tool_calls": CALLS},
            ],
            [USER, {"role": "assistant", "tool_calls": CALLS}, {"role": "assistant", "tool_calls": CALLS}],
        ),
        # All other keys are kept unless null.
        (
            [
                {"name": "Bo", "role": "user", "content": "Q", "weight": None},
                {
                    "role": "assistant",
                    "reasoning_content": "hm",
                    "content": "A",
                    "train": False,
                    "weight": 0,
                    "tool_calls": CALLS,
                    "audio": None,
                },
                {"role": "tool", "content": "r", "tool_call_id": "c1"},
            ],
            [
                {"role": "user", "content": "Q", "name": "Bo"},
                {
                    "role": "assistant",
                    "content": "A",
                    "reasoning_content": "hm",
                    "train": False,
                    "weight": 0,
                    "tool_calls": CALLS,
                },
                {"role": "tool", "content": "r", "tool_call_id": "c1"},
            ],
        ),
        ([{"role": "assistant", "content": "A", "tool_calls": None}], [ANSWER]),
    ],
)
def test_messages(given: list[Any], expected: list[Any]) -> None:
    row = {"messages": given, "id": 7}
    before = copy.deepcopy(row)
    for dialect in (Dialect.MESSAGES, Dialect.AUTO):
        assert messages(row, dialect) == expected
    assert row == before
    # Prompt and completion may be lists of the same messages.
    split = {"prompt": given[:-1], "completion": given[-1:]}
    if given[-1]["role"] == "assistant":
        assert messages(split) == messages(split, Dialect.PROMPT_COMPLETION) == expected


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"conversations": sharegpt(("human", "Q"), ("gpt", "A"))}, [USER, ANSWER]),
        (
            {"conversations": sharegpt(*((name, "A") for name in ("assistant", "chatgpt", "bard", "bing")))},
            [ANSWER] * 4,
        ),
        (
            {
                "conversations": sharegpt(
                    ("system", "S"),
                    ("user", "Q"),
                    ("function_call", "A"),
                    ("observation", "r"),
                    ("function_call", "A"),
                    ("function_response", "r"),
                    ("function_call", "A"),
                    ("function", "r"),
                    ("tool", "r"),
                    ("gpt", "A"),
                )
            },
            [
                SYSTEM,
                USER,
                *[ANSWER, {"role": "tool", "content": "r"}] * 3,
                {"role": "tool", "content": "r"},
                ANSWER,
            ],
        ),
        ({"system": "S", "conversations": sharegpt(("human", "Q"), ("gpt", "A"))}, [SYSTEM, USER, ANSWER]),
        ({"system": "", "conversations": sharegpt(("gpt", "A"))}, [ANSWER]),
        ({"system": None, "conversations": sharegpt(("gpt", "A"))}, [ANSWER]),
        # The same system prompt twice is one.
        ({"system": "S", "conversations": sharegpt(("system", "S"), ("gpt", "A"))}, [SYSTEM, ANSWER]),
        (
            {"system": "S", "conversations": sharegpt(("system", "T"), ("gpt", "A"))},
            [SYSTEM, {"role": "system", "content": "T"}, ANSWER],
        ),
        (
            {"conversations": [{"from": "gpt", "value": "A", "weight": 0.5, "loss": None}]},
            [{"role": "assistant", "content": "A", "weight": 0.5}],
        ),
    ],
)
def test_sharegpt(row: dict[str, Any], expected: list[Any]) -> None:
    assert messages(row) == messages(row, Dialect.SHAREGPT) == expected


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"instruction": "Q", "output": "A"}, [USER, ANSWER]),
        ({"instruction": "Q", "input": "", "output": "A"}, [USER, ANSWER]),
        ({"instruction": "Q", "input": None, "output": "A"}, [USER, ANSWER]),
        ({"instruction": "Q", "input": "I", "output": "A"}, [user("Q\n\nI"), ANSWER]),
        ({"instruction": "Q", "output": "A", "system": "S"}, [SYSTEM, USER, ANSWER]),
        ({"instruction": "Q", "output": "A", "history": []}, [USER, ANSWER]),
        (
            {"instruction": "Q", "output": "A", "system": "S", "history": [["1", "2"], ["3", "4"]]},
            [SYSTEM, user("1"), assistant("2"), user("3"), assistant("4"), USER, ANSWER],
        ),
    ],
)
def test_alpaca(row: dict[str, Any], expected: list[Any]) -> None:
    assert messages(row) == messages(row, Dialect.ALPACA) == expected


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"prompt": "Q", "completion": "A"}, [USER, ANSWER]),
        ({"prompt": [SYSTEM, USER], "completion": [ANSWER]}, [SYSTEM, USER, ANSWER]),
        ({"prompt": [SYSTEM, USER], "completion": "A"}, [SYSTEM, USER, ANSWER]),
        ({"prompt": "Q", "completion": [ANSWER]}, [USER, ANSWER]),
        ({"prompt": [], "completion": [ANSWER]}, [ANSWER]),
    ],
)
def test_prompt_completion(row: dict[str, Any], expected: list[Any]) -> None:
    assert messages(row) == messages(row, Dialect.PROMPT_COMPLETION) == expected


MESSAGES_ROW = {"messages": [user("m"), assistant("m")]}
CONVERSATIONS_ROW = {"conversations": sharegpt(("human", "c"), ("gpt", "c"))}
COMPLETION_ROW = {"prompt": "p", "completion": "p"}
ALPACA_ROW = {"instruction": "i", "output": "i"}


@pytest.mark.parametrize(
    ("row", "content"),
    [
        (ALPACA_ROW | COMPLETION_ROW | CONVERSATIONS_ROW | MESSAGES_ROW, "m"),
        (ALPACA_ROW | COMPLETION_ROW | CONVERSATIONS_ROW, "c"),
        (ALPACA_ROW | COMPLETION_ROW, "p"),
        # A key alone is not a layout, and a null, as Parquet has where rows differ, is no key.
        (ALPACA_ROW | {"prompt": "p"}, "i"),
        (ALPACA_ROW | {"messages": None, "conversations": None, "prompt": "p", "completion": None}, "i"),
        # Either list may hold either kind of message.
        ({"messages": CONVERSATIONS_ROW["conversations"]}, "c"),
        ({"conversations": MESSAGES_ROW["messages"]}, "m"),
    ],
)
def test_auto_order(row: dict[str, Any], content: str) -> None:
    assert messages(row) == [user(content), assistant(content)]


def test_field_mapping() -> None:
    row = {
        "chat": [{"who": "Customer", "text": "Q"}, {"who": "Agent", "text": "A", "n": 1}],
        "functions": [TOOL],
    }
    fields = FieldMapping(
        messages="chat",
        role="who",
        content="text",
        tools="functions",
        roles={"Customer": "user", "Agent": "assistant"},
    )
    for dialect in (Dialect.AUTO, Dialect.MESSAGES, Dialect.SHAREGPT):
        found = normalise(row, dialect, fields)
        assert found == Conversation([USER, {"role": "assistant", "content": "A", "n": 1}], [TOOL])


def test_a_mapped_field_wins_over_the_dialect_and_the_others_follow_it() -> None:
    row = {"dialogue": [{"from": "human", "text": "Q"}, {"from": "gpt", "text": "A"}], "sys": "S"}
    for dialect in (Dialect.AUTO, Dialect.SHAREGPT):
        assert messages(row, dialect, messages="dialogue", content="text", system="sys") == [
            SYSTEM,
            USER,
            ANSWER,
        ]


def test_mapped_fields_of_rows_without_a_list() -> None:
    row = {"q": "Q", "i": "I", "a": "A", "s": "S"}
    alpaca = {"instruction": "q", "input": "i", "output": "a", "system": "s"}
    for dialect in (Dialect.AUTO, Dialect.ALPACA):
        assert messages(row, dialect, **alpaca) == [SYSTEM, user("Q\n\nI"), ANSWER]
    for dialect in (Dialect.AUTO, Dialect.PROMPT_COMPLETION):
        assert messages(row, dialect, prompt="q", completion="a") == [USER, ANSWER]


def test_a_mapped_role_wins_over_a_known_one() -> None:
    row = {"messages": [{"role": "tool", "content": "Q"}, ANSWER]}
    assert messages(row, roles={"tool": "user"}) == [USER, ANSWER]


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        (None, None),
        ([], None),
        ("", None),
        ("[]", None),
        ("null", None),
        ([TOOL], [TOOL]),
        (json.dumps([TOOL, TOOL]), [TOOL, TOOL]),
        ([{"big": 2**70, "name": "ä"}], [{"big": 2**70, "name": "ä"}]),
    ],
)
@pytest.mark.parametrize("row", [MESSAGES_ROW, CONVERSATIONS_ROW, COMPLETION_ROW, ALPACA_ROW])
def test_tools(row: dict[str, Any], tools: Any, expected: Any) -> None:
    assert normalise(row | {"tools": tools}, Dialect.AUTO, DEFAULT).tools == expected


def bad(*given: Any) -> dict[str, Any]:
    return {"messages": [*given, ANSWER]}


IMAGE = {"type": "image_url", "image_url": {"url": "x"}}


@pytest.mark.parametrize(
    ("row", "reason", "detail"),
    [
        ({}, "missing_messages", "'messages' is missing; keys of the row: none"),
        ({"text": "x", "id": 1}, "missing_messages", "'messages' is missing; keys of the row: text, id"),
        ({"messages": None}, "missing_messages", "'messages' is null; keys of the row: messages"),
        ({"prompt": "x", "completion": None}, "missing_messages", "keys of the row: prompt, completion"),
        ({"messages": "x"}, "messages_not_a_list", "messages is a string"),
        ({"messages": {"role": "user"}}, "messages_not_a_list", "messages is an object"),
        ({"conversations": 3}, "messages_not_a_list", "conversations is a number"),
        ({"messages": []}, "empty_conversation", "messages is an empty list"),
        ({"conversations": [], "system": "S"}, "empty_conversation", "conversations is an empty list"),
        ({"prompt": [], "completion": []}, "empty_conversation", "prompt and completion are empty lists"),
        (bad("x"), "message_not_an_object", "messages[0] is a string"),
        (bad(USER, None), "message_not_an_object", "messages[1] is null"),
        (bad([]), "message_not_an_object", "messages[0] is a list"),
        (
            bad({"role": "robot", "content": "x"}),
            "unknown_role",
            "messages[0].role is 'robot'; known roles: system",
        ),
        (bad({"role": "User", "content": "x"}), "unknown_role", "'User'"),
        (bad({"role": "human", "content": "x"}), "unknown_role", "'human'"),
        (bad({"role": None, "content": "x"}), "unknown_role", "None"),
        (bad({"role": ["user"], "content": "x"}), "unknown_role", "['user']"),
        (bad({"role": "\ud800", "content": "x"}), "unknown_role", r"'\ud800'"),
        (bad({"content": "x"}), "unknown_role", "messages[0] has no 'role'; its keys: content"),
        (bad({}), "unknown_role", "its keys: none"),
        ({"conversations": sharegpt(("alien", "x"))}, "unknown_role", "conversations[0].from is 'alien'"),
        (bad({"role": "user"}), "missing_content", "messages[0] has no 'content'; its keys: role"),
        (bad({"role": "assistant"}), "missing_content", "messages[0] has no 'content'"),
        (bad({"role": "assistant", "reasoning_content": "x"}), "missing_content", "role, reasoning_content"),
        (bad({"role": "user", "tool_calls": CALLS}), "missing_content", "messages[0]"),
        (
            bad({"role": "user", "content": None}),
            "null_content",
            "messages[0].content is null in a message of role 'user'",
        ),
        (bad({"role": "assistant", "content": None}), "null_content", "'assistant'"),
        (bad({"role": "assistant", "content": None, "tool_calls": []}), "null_content", "'assistant'"),
        (bad({"role": "tool", "content": None, "tool_calls": CALLS}), "null_content", "'tool'"),
        (
            {"conversations": [{"from": "gpt", "value": None}]},
            "null_content",
            "conversations[0].value is null",
        ),
        (bad({"role": "user", "content": 3}), "bad_content", "messages[0].content is a number"),
        (bad({"role": "user", "content": {"text": "x"}}), "bad_content", "is an object"),
        (bad({"role": "user", "content": True}), "bad_content", "is a boolean"),
        (
            bad({"role": "user", "content": ["x", IMAGE]}),
            "unsupported_content",
            "messages[0].content[1] is a part of type 'image_url'",
        ),
        (bad({"role": "user", "content": [{"type": "text"}]}), "unsupported_content", "content[0]"),
        (bad({"role": "user", "content": [{"text": "x"}]}), "unsupported_content", "of type None"),
        (bad({"role": "user", "content": [None]}), "unsupported_content", "content[0] is a part null"),
        ({"messages": [USER, USER]}, "no_assistant_turn", "none of the 2 messages is by the assistant"),
        ({"prompt": "x", "completion": [USER]}, "no_assistant_turn", "none of the 2"),
        (MESSAGES_ROW | {"tools": {"a": 1}}, "bad_tools", "tools is an object, not a list"),
        (MESSAGES_ROW | {"tools": "[1"}, "bad_tools", "tools is a string that is not JSON"),
        (MESSAGES_ROW | {"tools": '{"a": 1}'}, "bad_tools", "tools is an object, not a list"),
        (MESSAGES_ROW | {"tools": [TOOL, "x"]}, "bad_tools", "tools[1] is a string, not an object"),
        (MESSAGES_ROW | {"tools": 3}, "bad_tools", "tools is a number, not a list"),
        (
            bad(user("ab\ud800")),
            "lone_surrogate",
            "messages[0].content holds half of a UTF-16 pair at character 2",
        ),
        (bad(user("\udc00" * 2)), "lone_surrogate", "at character 0"),
        (bad({"role": "user", "content": ["ok", "\ud800"]}), "lone_surrogate", "messages[0].content"),
        (bad({**USER, "name": "\ud800"}), "lone_surrogate", "messages[0]"),
        (bad({**USER, "x": [{"\ud800": 2**80}]}), "lone_surrogate", "messages[0]"),
        (MESSAGES_ROW | {"tools": [{"name": "\ud800"}]}, "lone_surrogate", "tools"),
        (MESSAGES_ROW | {"tools": '["\\ud800"]'}, "lone_surrogate", "tools"),
        (COMPLETION_ROW | {"prompt": "\ud800"}, "lone_surrogate", "prompt"),
        (CONVERSATIONS_ROW | {"system": "\ud800"}, "lone_surrogate", "system"),
        (CONVERSATIONS_ROW | {"system": ["S"]}, "bad_content", "system is a list, not a text"),
        (ALPACA_ROW | {"input": ["I"]}, "bad_content", "input is a list, not a text"),
        (ALPACA_ROW | {"history": "x"}, "bad_content", "history is a string, not a list of pairs"),
        (ALPACA_ROW | {"history": [["q"]]}, "bad_content", "history[0] is not a pair of texts"),
        (ALPACA_ROW | {"history": [["q", None]]}, "bad_content", "history[0] is null, not a text"),
        (COMPLETION_ROW | {"completion": 3}, "bad_content", "completion is a number, not a text"),
    ],
)
def test_rejected(row: dict[str, Any], reason: str, detail: str) -> None:
    rejected = rejection(row)
    assert rejected.reason == reason
    assert detail in rejected.detail


@pytest.mark.parametrize(
    ("dialect", "row", "reason", "detail"),
    [
        (
            Dialect.MESSAGES,
            CONVERSATIONS_ROW,
            "missing_messages",
            "'messages' is missing; keys of the row: conversations",
        ),
        (
            Dialect.MESSAGES,
            {"messages": sharegpt(("human", "x"))},
            "unknown_role",
            "messages[0] has no 'role'",
        ),
        (
            Dialect.SHAREGPT,
            MESSAGES_ROW,
            "missing_messages",
            "'conversations' is missing; keys of the row: messages",
        ),
        (
            Dialect.ALPACA,
            {"instruction": "x"},
            "missing_messages",
            "'output' is missing; keys of the row: instruction",
        ),
        (Dialect.ALPACA, {"instruction": "x", "output": None}, "null_content", "output is null"),
        (Dialect.PROMPT_COMPLETION, {"prompt": "x"}, "missing_messages", "'completion' is missing"),
        (Dialect.PROMPT_COMPLETION, {"prompt": None, "completion": "x"}, "null_content", "prompt is null"),
    ],
)
def test_a_given_dialect_is_not_guessed(
    dialect: Dialect, row: dict[str, Any], reason: str, detail: str
) -> None:
    rejected = rejection(row, dialect)
    assert rejected.reason == reason
    assert detail in rejected.detail


def test_details_stay_short() -> None:
    row = {f"key{i:04d}" * 50: 1 for i in range(5000)}
    assert len(rejection(row).detail) < 1200
    assert len(rejection({"messages": [{"role": "x" * 10_000, "content": ""}]}).detail) < 300


def test_deep_values_beside_the_text_are_kept() -> None:
    deep: list[Any] = []
    for _ in range(900):
        deep = [deep]
    assert messages(bad({**USER, "x": deep}))[0]["x"] is deep


def test_a_rejection_crosses_processes() -> None:
    rejected = pickle.loads(pickle.dumps(RowRejected("bad_tools", "tools is null")))  # noqa: S301
    assert (rejected.reason, rejected.detail, str(rejected)) == (
        "bad_tools",
        "tools is null",
        "bad_tools: tools is null",
    )


def test_roles_are_checked_with_the_configuration() -> None:
    with pytest.raises(ConfigError, match="'system', 'developer', 'user', 'assistant' or 'tool'") as caught:
        FieldMapping.parse({"roles": {"Bot": "bot"}})
    assert caught.value.where == "roles.Bot"
    with pytest.raises(ConfigError, match="did you mean 'messages'"):
        FieldMapping.parse({"mesages": "x"})


def test_every_field_says_what_it_is_and_defaults_leave_no_trace() -> None:
    assert all(field.description for field in FieldMapping.model_fields.values())
    assert DEFAULT.hash_fields() == {}
    assert FieldMapping(roles={"Bot": "assistant"}).hash_fields() == {"roles": {"Bot": "assistant"}}


def test_gsm8k() -> None:
    path = Path(__file__).parents[3] / "shared" / "data" / "gsm8k.jsonl"
    if not path.exists():
        pytest.skip("the GSM8K rows are not here")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 3000
    for row in rows:
        assert normalise(row, Dialect.AUTO, DEFAULT) == Conversation(row["messages"], None)
