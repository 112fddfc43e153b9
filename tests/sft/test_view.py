"""Bins as text: what is marked is what is trained, and no character is lost at a cut."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from support import GSM8K, chat, config_of, mill_serially, write_jsonl

from schemas.report import Passage
from tasks.sft.view import load_decoder, passages


def published(root: Path) -> Path:
    [shard] = sorted((root / "latest" / "datasets").rglob("*.parquet"))
    return shard


def viewed(shard: Path, tokenizer: Path) -> list[tuple[Passage, ...]]:
    decode = load_decoder(tokenizer)
    return [
        passages(np.array(row["input_ids"][start:end]), np.array(row["loss_mask"][start:end]), decode)
        for row in pq.read_table(shard).to_pylist()
        for start, end in pairwise([*row["seq_start_id"], len(row["input_ids"])])
    ]


def test_the_marked_text_is_what_the_assistant_said(small_tokenizer: Path, tmp_path: Path) -> None:
    # Characters of several tokens on both sides of every cut.
    rows = [chat(f"頭{i}🦉", f"尾{i}é", f"もう{i}", f"🦉🦉{i}") for i in range(30)]
    source = write_jsonl(tmp_path / "a.jsonl", rows)
    mill_serially(config_of(tmp_path / "out", source, small_tokenizer))

    found = viewed(published(tmp_path / "out"), small_tokenizer)

    said = sorted(tuple(span.text for span in sequence if span.trained) for sequence in found)
    assert said == sorted((f"尾{i}é<|im_end|>", f"🦉🦉{i}<|im_end|>") for i in range(30))
    whole = "<|im_start|>user\n頭0🦉<|im_end|>\n<|im_start|>assistant\n尾0é<|im_end|>\n"
    assert sum("".join(span.text for span in sequence).startswith(whole) for sequence in found) == 1


@pytest.mark.skipif(not GSM8K.exists(), reason="the sample data is not here")
def test_real_chats_through_a_real_tokenizer(deepseek: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(
        "{% for m in messages %}{% if m.role == 'user' %}<｜User｜>{{ m.content }}{% else %}<｜Assistant｜>"
        "{% generation %}{{ m.content }}<｜end▁of▁sentence｜>{% endgeneration %}{% endif %}{% endfor %}"
    )
    with GSM8K.open() as file:
        rows = [json.loads(next(file)) for _ in range(50)]
    source = write_jsonl(tmp_path / "a.jsonl", rows)
    config = config_of(tmp_path / "out", source, deepseek, pack={"size": 1024})
    settings = config.tokenizer.model_copy(update={"chat_template": str(template)})
    mill_serially(config.model_copy(update={"tokenizer": settings}))

    found = viewed(published(tmp_path / "out"), deepseek)

    said = sorted("".join(span.text for span in sequence if span.trained) for sequence in found)
    answers = [[m["content"] for m in row["messages"] if m["role"] == "assistant"] for row in rows]
    assert said == sorted(f"{answer}<｜end▁of▁sentence｜>" for [answer] in answers)


def test_a_decoder_that_shortens_text_at_a_cut_loses_nothing() -> None:
    """A sentencepiece-like decoder drops the first space, so the parts alone are shorter than their places."""
    words = ["▁the", "▁cat", "▁sat", "."]

    def decode(ids: list[int]) -> str:
        return "".join(words[i] for i in ids).replace("▁", " ").removeprefix(" ")

    found = passages(np.arange(4, dtype=np.int32), np.array([0, 1, 0, 0], np.uint8), decode)

    assert found == (Passage("the cat", False), Passage(" sat", True), Passage(".", False))


@pytest.mark.parametrize(("ids", "mask"), [([], []), ([5], [0])])
def test_short_sequences(ids: list[int], mask: list[int]) -> None:
    found = passages(np.array(ids, np.int32), np.array(mask, np.uint8), lambda given: "x" * len(given))

    assert found == tuple(Passage("x", False) for _ in ids)


def test_a_folder_without_tokenizer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises((OSError, ValueError)):
        load_decoder(tmp_path)
