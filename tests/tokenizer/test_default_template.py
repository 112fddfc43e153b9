"""The default template: content lists, null content, tools and tool calls; plain turns as ChatML has them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support import config_of, mill_serially, write_jsonl
from transformers import PreTrainedTokenizerFast

from schemas.tokenizer import CHAT_TEMPLATE

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "tokenizer"
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich"}}}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
HEAD = (
    "# Tools\n\nYou may call one or more of these functions:\n<tools>\n"
    '{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}\n'
    "</tools>\n\nTo call one, answer with its name and arguments as JSON:\n<tool_call>\n"
    '{"name": <function name>, "arguments": <arguments>}\n</tool_call><|im_end|>\n'
)
CALLED = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
# Messages, tools, the text.
CASES: dict[str, tuple[list[dict[str, Any]], Any, str]] = {
    "plain": (
        [{"role": "system", "content": " s\n"}, user("q"), assistant("  a ")],
        None,
        "<|im_start|>system\n s\n<|im_end|>\n<|im_start|>user\nq<|im_end|>\n"
        "<|im_start|>assistant\n  a <|im_end|>\n",
    ),
    "parts": (
        [user(PARTS), assistant(["c", "d"])],
        None,
        "<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\ncd<|im_end|>\n",
    ),
    "none": (
        [user(None), assistant(None)],
        None,
        "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n",
    ),
    "tools": (
        [user("q"), assistant(None, tool_calls=[CALL]), {"role": "tool", "content": "12"}, assistant("ok")],
        [WEATHER],
        f"<|im_start|>system\n{HEAD}<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n{CALLED}<|im_end|>\n"
        "<|im_start|>tool\n12<|im_end|>\n<|im_start|>assistant\nok<|im_end|>\n",
    ),
    "system and two calls": (
        [{"role": "system", "content": "s"}, user("q"), assistant("so", tool_calls=[CALL, CALL["function"]])],
        [WEATHER],
        f"<|im_start|>system\ns\n\n{HEAD}<|im_start|>user\nq<|im_end|>\n"
        f"<|im_start|>assistant\nso\n{CALLED}\n{CALLED}<|im_end|>\n",
    ),
    "arguments as text": (
        [
            user("q"),
            assistant("", tool_calls=[{"function": {"name": "weather", "arguments": '{"city": "Zürich"}'}}]),
        ],
        None,
        f"<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n{CALLED}<|im_end|>\n",
    ),
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return PreTrainedTokenizerFast.from_pretrained(FIXTURE)


@pytest.mark.parametrize("case", CASES)
def test_transformers_renders_it(tokenizer: Any, case: str) -> None:
    messages, tools, expected = CASES[case]
    options = {"chat_template": CHAT_TEMPLATE, "tools": tools, "tokenize": False}
    assert tokenizer.apply_chat_template(messages, **options) == expected
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, **options)
    assert prompt == expected + "<|im_start|>assistant\n"


def test_what_the_assistant_writes_is_marked(tokenizer: Any) -> None:
    messages, tools, _ = CASES["system and two calls"]
    found = tokenizer.apply_chat_template(
        messages,
        chat_template=CHAT_TEMPLATE,
        tools=tools,
        return_assistant_tokens_mask=True,
        return_dict=True,
    )
    ids = [id_ for id_, mark in zip(found["input_ids"], found["assistant_masks"], strict=True) if mark]
    assert tokenizer.decode(ids) == f"so\n{CALLED}\n{CALLED}<|im_end|>"


def test_other_parts_are_refused(tokenizer: Any) -> None:
    with pytest.raises(Exception, match="a content part of type image is not text"):
        tokenizer.apply_chat_template(
            [user([{"type": "image", "url": "x"}])], chat_template=CHAT_TEMPLATE, tokenize=False
        )


def test_pack_sft_packs_it(tmp_path: Path) -> None:
    rows = [
        {"messages": messages, "tools": tools or []}
        for messages, tools, _ in CASES.values()
        if messages[0]["content"]
    ]
    folder = Path(shutil.copytree(FIXTURE, tmp_path / "tokenizer"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": CHAT_TEMPLATE}))
    source = write_jsonl(tmp_path / "a.jsonl", rows)
    config = config_of(tmp_path / "out", source, folder, pack={"size": 1024})
    manifest, _ = mill_serially(config)
    assert (manifest.ledger.rows_used, manifest.ledger.rejected) == (len(rows), {})
