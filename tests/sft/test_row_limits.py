from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support import chat, write_jsonl

from schemas.sft import DatasetConfig, TokenizerConfig, TrainOn
from tasks.inputs.files import resolve
from tasks.inputs.segments import cut
from tasks.run.rejects import REJECTS
from tasks.sft.chat.tokenizer import load_tokenizer
from tasks.sft.chat.tokenizer_source import find_tokenizer
from tasks.sft.tokenize import TokenizeJob, tokenize_part


class PanicException(BaseException):
    """As pyo3 raises when Rust panics: no `Exception`, and its class cannot be imported."""


class Fragile:
    """A tokenizer whose native code fails on texts with the word."""

    def __init__(self, backend: Any, word: str, error: BaseException) -> None:
        self._backend, self._word, self._error = backend, word, error

    def _checked(self, texts: Any) -> Any:
        if any(self._word in text for text in ([texts] if isinstance(texts, str) else texts)):
            raise self._error
        return texts

    def encode(self, text: str, **options: Any) -> Any:
        return self._backend.encode(self._checked(text), **options)

    def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
        return self._backend.encode_batch_fast(self._checked(texts), **options)


def job_of(folder: Path, tokenizer_folder: Path, rows: list[Any], **changes: Any) -> TokenizeJob:
    source = write_jsonl(folder / "chats.jsonl", rows)
    tokenizer = TokenizerConfig(path=str(tokenizer_folder))
    [segment] = cut(resolve(str(source)), source.stat().st_size)
    return TokenizeJob(
        output_dir=str(folder / "out"),
        stage="0123456789abcdef",
        segments=(segment,),
        dataset=DatasetConfig(name="chats", path=str(source)),
        source=find_tokenizer(tokenizer),
        tokenizer=tokenizer,
        train_on=TrainOn.ASSISTANT,
        **changes,
    )


def rejected(job: TokenizeJob) -> list[tuple[int, str]]:
    return [(row["row"], row["reason"]) for row in pq.read_table(job.folder / REJECTS).to_pylist()]


def test_rows_over_the_limit_are_rejected_before_they_are_rendered(
    tmp_path: Path, small_tokenizer: Path
) -> None:
    rows = [chat("a" * size, "b") for size in (10, 2000, *range(940, 970))]
    job = job_of(tmp_path, small_tokenizer, rows, max_row_bytes=1024)
    ledger = tokenize_part(job).ledger
    large = [
        number
        for number, row in enumerate(rows)
        if len(json.dumps([row["messages"], None], separators=(",", ":"))) > 1024
    ]
    assert rejected(job) == [(number, "row_too_large") for number in large]
    assert 0 < len(large) < len(rows)
    assert (ledger.rows_in, ledger.rows_used) == (len(rows), len(rows) - len(large))


@pytest.mark.parametrize("error", [PanicException("byte index 7"), RuntimeError("no such merge")])
def test_a_row_that_the_tokenizer_fails_on_costs_that_row_alone(
    tmp_path: Path, small_tokenizer: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    rows = [chat("poison" if number in (3, 4, 290) else f"a{number}", "b") for number in range(300)]
    job = job_of(tmp_path, small_tokenizer, rows)
    tokenizer = load_tokenizer(job.source, job.tokenizer)
    monkeypatch.setattr(tokenizer, "_backend", Fragile(tokenizer._backend, "poison", error))
    ledger = tokenize_part(job).ledger
    assert rejected(job) == [(number, "tokenizer_failed") for number in (3, 4, 290)]
    assert (ledger.rows_in, ledger.rows_used) == (300, 297)


def test_an_interrupt_is_an_interrupt(
    tmp_path: Path, small_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(tmp_path, small_tokenizer, [chat("poison", "b")])
    tokenizer = load_tokenizer(job.source, job.tokenizer)
    monkeypatch.setattr(tokenizer, "_backend", Fragile(tokenizer._backend, "poison", KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        tokenize_part(job)
