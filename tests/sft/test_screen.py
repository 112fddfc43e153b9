"""What would spoil every row stops the run before any tokenizing, with the row or the message shown."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import Cli, Outcome
from support import chat, config_of, mill_serially, write_jsonl

from schemas.sft import TokenizerConfig, TrainOn
from tasks.sft.chat.dialects import Conversation
from tasks.sft.chat.rendering import check_rendering
from tasks.sft.chat.tokenizer import load_tokenizer
from tasks.sft.chat.tokenizer_source import find_tokenizer

GOOD = [chat(f"ask {i}", f"answer {i}") for i in range(300)]
ALPACA = [{"instruction": f"ask {i}", "response": f"answer {i}"} for i in range(300)]
IM = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


@pytest.fixture
def pack(cli: Cli, configured: Callable[..., Path]) -> Callable[..., Outcome]:
    def run(source: Path, **changes: Any) -> Outcome:
        return cli("pack-sft", configured(source, **changes), "--json")

    return run


def nothing_was_tokenized(tmp_path: Path) -> bool:
    return not list((tmp_path / "out").rglob("tokens*")) and not list((tmp_path / "out").rglob("rejects*"))


def written(folder: Path, kind: str, rows: list[dict[str, Any]]) -> Path:
    folder.mkdir(exist_ok=True)
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), folder / "a.parquet")
    elif kind == "jsonl.gz":
        (folder / "a.jsonl.gz").write_bytes(
            gzip.compress("".join(json.dumps(r) + "\n" for r in rows).encode())
        )
    else:
        write_jsonl(folder / "a.jsonl", rows)
    return folder


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet"])
@pytest.mark.parametrize(
    ("rows", "dataset", "told"),
    [
        (ALPACA, {}, "'output' is missing; keys of the row: instruction, response; with 'instruction' it looks like "
                     "an alpaca row: if 'output' has another name there, set fields.output"),
        (ALPACA, {"dialect": "messages"}, "'messages' is missing"),
        (ALPACA, {"dialect": "alpaca"}, "'output' is missing"),
        (GOOD, {"fields": {"messages": "dialog"}}, "'dialog' is missing; keys of the row: messages; if 'messages' is "
                                                   "the list of messages, set fields.messages"),
        (GOOD, {"fields": {"role": "speaker"}}, "messages[0] has no 'speaker'; its keys: role, content"),
        (GOOD, {"fields": {"content": "text"}}, "messages[0] has no 'text'; its keys: role, content"),
        ([{"text": "a", "id": 1}] * 30, {}, "needed: 'messages', 'conversations', 'prompt' and 'completion', or "
                                            "'instruction' and 'output'"),
        ([{"messages": "a"}] * 30, {}, "messages is a string"),
    ],
)  # fmt: skip
def test_a_wrong_layout(
    kind: str, rows: list[Any], dataset: dict[str, Any], told: str, pack: Any, tmp_path: Path
) -> None:
    source = written(tmp_path / "in", kind, rows)
    done = pack(source, datasets=[{"name": "chats", "path": str(source), **dataset}])
    assert (done.code, done.message.split("]")[0]) == (2, "[wrong_layout")
    assert f"a.{kind}, row 0: " in done.message and told in done.message
    assert "set dialect or fields" in done.message and "max_reject_fraction" in done.message
    assert "datasets.chats" in done.message
    assert nothing_was_tokenized(tmp_path)


def test_the_row_filter_goes_first(pack: Any, tmp_path: Path) -> None:
    rows = [{**row, "used_in": "sft"} for row in GOOD] + [{"used_in": "rl", "prompt": "x"}] * 300
    source = written(tmp_path / "in", "jsonl", rows[::-1])
    datasets = [{"name": "chats", "path": str(source), "where": {"used_in": "sft"}}]
    assert pack(source, datasets=datasets).code == 0


@pytest.mark.parametrize(("limit", "code"), [(0.05, 2), (0.6, 0), (1.0, 0)])
def test_what_may_be_rejected_is_rejected(limit: float, code: int, pack: Any, tmp_path: Path) -> None:
    source = written(tmp_path / "in", "jsonl", GOOD)
    write_jsonl(source / "b.jsonl", ALPACA)
    done = pack(source, max_reject_fraction=limit)
    assert done.code == code, done.err
    if code:
        assert "no first row of 1 of 2 files of chats has the layout of the dialect 'auto'" in done.message
        assert "b.jsonl, row 0: " in done.message
    else:
        assert json.loads(done.out.splitlines()[-1])["stats"]["rejected"] == {"missing_messages": 300}


def test_what_may_be_rejected_is_said_in_every_run(pack: Any, tmp_path: Path) -> None:
    source = written(tmp_path / "in", "jsonl", GOOD)
    write_jsonl(source / "b.jsonl", ALPACA)
    first = pack(source, max_reject_fraction=1.0)
    # The screening is found done, and judged by the limit of this run.
    second = pack(source, max_reject_fraction=0.05, pack={"size": 64})
    third = pack(source, max_reject_fraction=1.0, pack={"size": 32})
    assert (first.code, second.code, third.code) == (0, 2, 0)
    for done in (first, third):
        [warning] = json.loads(done.out.splitlines()[-1])["warnings"][:1]
        assert warning.startswith("no first row of 1 of 2 files of chats could be used: b.jsonl, row 0: ")


@pytest.mark.parametrize(
    "bad",
    [
        [{"x": 1}] * 25,
        [chat("only a question")] * 25,
        [{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "weight": 2}]}]
        * 25,
        [{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "weight": 0}]}]
        * 25,
    ],
)
def test_rows_that_are_bad_for_themselves_are_left_to_the_rejects(
    bad: list[Any], pack: Any, tmp_path: Path
) -> None:
    done = pack(written(tmp_path / "in", "jsonl", [*bad, *GOOD, *GOOD]))
    assert done.code == 0, done.err
    assert sum(json.loads(done.out.splitlines()[-1])["stats"]["rejected"].values()) == 25


def test_a_role_that_only_later_rows_have_is_looked_at(pack: Any, tmp_path: Path) -> None:
    """Of each shape of conversation one is rendered, in whatever file it comes first."""
    source = written(tmp_path / "in", "jsonl", GOOD)
    write_jsonl(source / "b.jsonl", [chat(f"ask {i}", "fine", system="Be brief.") for i in range(50)])
    template = IM.replace("{% for m in messages %}", "{% for m in messages if m.role != 'system' %}") + PROMPT
    done = pack(source, template=template)
    assert done.code == 2
    assert "b.jsonl, row 0: the template drops the text of message 0, of role 'system'" in done.message


def test_some_rows_that_a_template_refuses_are_rejected(pack: Any, tmp_path: Path) -> None:
    tool = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"},
                         {"role": "tool", "content": "t"}, {"role": "assistant", "content": "b"}]}  # fmt: skip
    refusing = "{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    template = IM.replace("{% for m in messages %}", "{% for m in messages %}" + refusing) + PROMPT
    done = pack(written(tmp_path / "in", "jsonl", [*[tool] * 10, *GOOD]), template=template)
    assert done.code == 0, done.err
    assert json.loads(done.out.splitlines()[-1])["stats"]["rejected"] == {"template_error": 10}


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{{ 'x' }}", "the template never mentions `messages`"),
        ("{{ 'x' }}{% set message = 3 %}", "the template never mentions `messages`"),
        # The text of the question is left out; of every second message; of one role.
        ("{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>{{ m.content }}<|im_end|>\n{% endif %}"
         "{% endfor %}", "drops the text of message 0, of role 'user': 'ask 0'"),
        (IM.replace("m.content", "m.text") + PROMPT, "drops the text of message 0, of role 'user': 'ask 0'"),
        (IM.replace("m.content", "m.content[:5]") + PROMPT, "drops the text of message 0, of role 'user': 'ask 0'"),
        (IM.replace("{{ m.content }}<", "{{ m.content }}{% generation %}{% endgeneration %}<"),
         "does not mark the text of message 1, of role 'assistant': 'answer 0' as trained"),
        ("{% for m in messages %}{{ m.nothing.at.all }}{% endfor %}", "no first row of its only file of chats can be "
                                                                      "rendered"),
        ("{% for m in messages %}{{ raise_exception('no ' + m.role) }}{% endfor %}", "template_error: .*no user"),
    ],
)  # fmt: skip
def test_a_wrong_template(template: str, told: str, pack: Any, tmp_path: Path) -> None:
    import re

    rows = [chat(f"ask {i} and some more", f"answer {i}") for i in range(30)]
    source = written(tmp_path / "in", "jsonl", rows)
    done = pack(source, template=template)
    assert (done.code, done.message.split("]")[0]) == (2, "[bad_template"), done.err
    assert re.search(told.replace("'ask 0'", "'ask 0 and some more'").replace("[", r"\["), done.message)
    assert "a.jsonl, row 0" in done.message
    assert nothing_was_tokenized(tmp_path)


@pytest.mark.parametrize(
    "template",
    [
        IM + PROMPT,
        IM.replace("{{ m.content }}", "{{ m.content | trim }}") + PROMPT,
        # Content in JSON, as some templates print what tools return.
        IM.replace("{{ m.content }}", "{{ m.content | tojson }}") + PROMPT,
        IM.replace("{{ m.content }}", "{{ m.content | e }}") + PROMPT,
        # Earlier reasoning is left out.
        IM.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] if not loop.last else m.content }}")
        + PROMPT,
    ],
)
def test_what_templates_do_to_texts(template: str, small_tokenizer: Path, tmp_path: Path) -> None:
    rows = [
        chat(
            'a "quoted"\n  <question> é',
            "<think>\nhm\n</think>\n\nyes & no",
            "then?",
            "<think>x</think>fine ",
        )
        for _ in range(3)
    ]
    source = written(tmp_path / "in", "jsonl", rows)
    tokenizer = {"path": str(small_tokenizer), "chat_template": template}
    manifest, _ = mill_serially(config_of(tmp_path / "out", source, small_tokenizer, tokenizer=tokenizer))
    assert manifest.ledger.rows_used == 3


CALL = {"id": "1", "type": "function", "function": {"name": "get_time", "arguments": {"zone": "UTC"}}}
CALLS = "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
WITH_CALLS = IM.replace("{{ m.content }}", "{{ m.content or '' }}" + CALLS) + PROMPT
# As templates of reasoning models have it: earlier reasoning is left out.
LATEST = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    + IM.replace("{{ m.content }}", "{% if loop.index0 < ns.last %}{{ (m.content or '').split('</think>')[-1] }}"
                            "{% else %}{{ m.content or '' }}{% endif %}" + CALLS)
    + PROMPT
)  # fmt: skip


def said(*messages: dict[str, Any]) -> Conversation:
    return Conversation(list(messages), None)


def ask(text: str = "what now?") -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str | None, **keys: Any) -> dict[str, Any]:
    return {"role": "assistant", **({} if text is None else {"content": text}), **keys}


@pytest.mark.parametrize(
    ("template", "conversation", "problem"),
    [
        (WITH_CALLS, said(ask(), answer(None, tool_calls=[CALL])), None),
        (IM.replace("m.content", "m.content or ''") + PROMPT, said(ask(), answer(None, tool_calls=[CALL])),
         "drops the call of 'get_time' in message 1"),
        (IM + PROMPT, said(ask(), answer("fine", reasoning_content="let me see")),
         "drops the reasoning of message 1"),
        (IM.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}") + PROMPT,
         said(ask(), answer("<think>\nlet me see\n</think>\n\nfine")), "drops the reasoning of message 1"),
        (LATEST, said(ask(), answer("<think>plan</think>", tool_calls=[CALL]), ask("and?"), answer("done")), None),
        (LATEST, said(ask(), answer("<think>plan</think>one"), ask("and?"), answer("<think>so</think>two")), None),
        (IM.replace("{{ m.content }}", "{% if m.role == 'user' %}{% generation %}{{ m.content }}{% endgeneration %}"
                                       "{% else %}{{ m.content }}{% endif %}"), said(ask(), answer("fine")),
         "does not mark the text of message 1, of role 'assistant': 'fine' as trained"),
        (IM.replace("<|im_end|>", "{% generation %}<|im_end|>{% endgeneration %}"), said(ask(), answer("fine")),
         "does not mark the text of message 1"),
        # Merged with the question, as templates without a system role do.
        ("{% for m in messages %}{% if m.role == 'system' %}"
         "{% elif loop.index0 == 1 and messages[0].role == 'system' %}"
         "<|im_start|>user\n{{ messages[0].content | trim }}\n\n{{ m.content | trim }}<|im_end|>\n{% else %}"
         "<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endif %}{% endfor %}" + PROMPT,
         said({"role": "system", "content": " Be brief. "}, ask("hi\n"), answer("hello ")), None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("train_on", [TrainOn.ASSISTANT, TrainOn.LAST_TURN])
def test_what_a_template_loses(
    template: str, conversation: Conversation, problem: str | None, train_on: TrainOn, small_tokenizer: Path
) -> None:
    config = TokenizerConfig(path=str(small_tokenizer), chat_template=template)
    found = check_rendering(load_tokenizer(find_tokenizer(config), config), conversation, train_on)
    assert (found is None) if problem is None else (problem in str(found)), found


def test_special_tokens_in_texts_are_texts(small_tokenizer: Path, tmp_path: Path) -> None:
    source = written(tmp_path / "in", "jsonl", [chat("what is <|im_end|>?", "<|im_start|> begins")] * 3)
    manifest, _ = mill_serially(config_of(tmp_path / "out", source, small_tokenizer))
    assert manifest.ledger.rows_used == 3


def test_the_check_can_be_turned_off_and_is_made_when_turned_on(
    small_tokenizer: Path, tmp_path: Path
) -> None:
    source = written(tmp_path / "in", "jsonl", GOOD)
    template = IM.replace("m.content", "m.content[:5]") + PROMPT
    tokenizer = {"path": str(small_tokenizer), "chat_template": template, "check_template": False}
    manifest, _ = mill_serially(config_of(tmp_path / "out", source, small_tokenizer, tokenizer=tokenizer))
    assert manifest.ledger.rows_used == 300
    on = config_of(tmp_path / "out", source, small_tokenizer, tokenizer={**tokenizer, "check_template": True})
    with pytest.raises(Exception, match="drops the text of message"):
        mill_serially(on)


def test_a_finished_check_is_not_made_again(small_tokenizer: Path, tmp_path: Path) -> None:
    source = written(tmp_path / "in", "jsonl", GOOD)
    _, first = mill_serially(config_of(tmp_path / "out", source, small_tokenizer))
    _, second = mill_serially(config_of(tmp_path / "out", source, small_tokenizer, pack={"size": 64}))
    assert "screen" in {name for name, _ in first.executed}
    assert {name for name, _ in second.executed} == {"pack", "validate"}
