from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support import chat, write_jsonl

from schemas.sft import DatasetConfig, TokenizerConfig, TrainOn
from tasks.inputs.files import resolve
from tasks.inputs.segments import whole_file
from tasks.run.rejects import REJECTS
from tasks.sft import screen
from tasks.sft.chat import masks
from tasks.sft.chat import tokenizer as tokenizers
from tasks.sft.chat.dialects import Conversation
from tasks.sft.chat.tokenizer import load_tokenizer
from tasks.sft.chat.tokenizer_source import find_tokenizer
from tasks.sft.screen import ScreenJob, screen_dataset
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


def job_of(
    folder: Path, tokenizer_folder: Path, rows: list[Any], template: str = "", **changes: Any
) -> TokenizeJob:
    source = write_jsonl(folder / "chats.jsonl", rows)
    tokenizer = TokenizerConfig(path=str(tokenizer_folder), chat_template=template or None)
    [file] = resolve(str(source))
    segment = whole_file(file, "jsonl")
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


class Counting:
    """A tokenizer that notes how many characters it is given at once."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.most = 0

    def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
        self.most = max(self.most, sum(map(len, texts)))
        return self._backend.encode_batch_fast(texts, **options)


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


def test_a_panic_of_the_real_tokenizer_costs_its_row(tmp_path: Path, small_tokenizer: Path) -> None:
    folder = shutil.copytree(small_tokenizer, tmp_path / "tokenizer")
    description = json.loads((folder / "tokenizer.json").read_text())
    # Every `a` can be in one group or the next: the search tries all ways, up to a limit at which the code panics.
    pattern = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    splits = {"type": "Sequence", "pretokenizers": [pattern, description["pre_tokenizer"]]}
    (folder / "tokenizer.json").write_text(json.dumps({**description, "pre_tokenizer": splits}))
    rows = [chat("a" * (40 if number == 5 else 2) + "c", "b") for number in range(10)]
    job = job_of(tmp_path, folder, rows)
    ledger = tokenize_part(job).ledger
    assert pq.read_table(job.folder / REJECTS).select(["row", "reason", "detail"]).to_pylist() == [
        {
            "row": 5,
            "reason": "tokenizer_failed",
            "detail": "the tokenizer panicked: Onig: Regex search error: retry-limit-in-match over",
        }
    ]
    assert (ledger.rows_in, ledger.rows_used) == (10, 9)


def test_a_row_of_many_samples_is_encoded_in_portions(
    tmp_path: Path, small_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizers, "_PORTION", 1000)
    turns = [{"role": role, "content": "ab " * 100} for role in ("user", "assistant") * 20]
    job = job_of(tmp_path, small_tokenizer, [{"messages": turns}] * 3)
    tokenizer = load_tokenizer(job.source, job.tokenizer)
    counting = Counting(tokenizer._backend)
    monkeypatch.setattr(tokenizer, "_backend", counting)
    portions = tokenize_part(job).statistics
    assert 500 < counting.most <= 1000
    monkeypatch.undo()
    whole = tokenize_part(job_of(tmp_path, small_tokenizer, [{"messages": turns}] * 3)).statistics
    assert portions == whole


@pytest.mark.parametrize(("turns", "reason"), [(8, []), (40, ["row_too_large"])])
def test_the_samples_of_a_row_are_bounded_together(
    tmp_path: Path, small_tokenizer: Path, turns: int, reason: list[str]
) -> None:
    # A template that shortens earlier turns makes a sample of each, which holds all turns before it.
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content if loop.index0 > messages | length - 3 else "
        "m.content[1:] }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    row = {"messages": [{"role": role, "content": "ab " * 30} for role in ("user", "assistant") * turns]}
    job = job_of(tmp_path, small_tokenizer, [row], template=template, max_row_bytes=11_000)
    receipt = tokenize_part(job)
    assert len(json.dumps(row)) < 11_000
    assert receipt.statistics["sequences"] == (0 if reason else turns)
    assert ([why for _, why in rejected(job)] if reason else []) == reason


def test_the_renders_of_a_row_are_bounded_together(
    tmp_path: Path, small_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masks, "_ROW_BUDGET", 100_000)
    rows = [
        {"messages": [{"role": role, "content": "ab"} for role in ("user", "assistant") * turns]}
        for turns in (2, 400)
    ]
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    job = job_of(tmp_path, small_tokenizer, rows, template=template)
    assert tokenize_part(job).ledger.rows_used == 1
    assert rejected(job) == [(1, "template_budget")]


@pytest.mark.parametrize(
    ("template", "budget", "most"),
    [
        # Its renders take hardly any steps, but each is given all messages.
        (
            "{{ messages | length }} {{ messages[-1].content if not add_generation_prompt }}",
            masks._ROW_BUDGET,
            31_712,
        ),
        # Earlier answers render differently than the last, so that each user turn is a sample.
        (
            "{% for m in messages %}<{{ m.role }}>{{ m.content if loop.index0 > messages | length - 3 }}{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}",
            1_000_000,
            400,
        ),
    ],
)
def test_a_row_of_very_many_messages_ends(
    tmp_path: Path,
    small_tokenizer: Path,
    monkeypatch: pytest.MonkeyPatch,
    template: str,
    budget: int,
    most: int,
) -> None:
    monkeypatch.setattr(masks, "_ROW_BUDGET", budget)
    rows = [
        {"messages": [{"role": role, "content": "a"} for role in ("user", "assistant") * turns]}
        for turns in (1, most // 80, most)
    ]
    job = job_of(tmp_path, small_tokenizer, rows, template=template)
    before = time.process_time()
    receipt = tokenize_part(job)
    # Less than a second on the machine the budget was chosen on; it took minutes.
    assert time.process_time() - before < 30
    assert rejected(job) == [(2, "template_budget")]
    assert receipt.statistics["sequences"] == 1 + most // 80


def test_rows_over_the_limit_are_not_screened(
    tmp_path: Path, small_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[int] = []

    def count(tokenizer: object, conversation: Conversation, train_on: object) -> None:
        rendered.append(len(conversation.messages[0]["content"]))

    monkeypatch.setattr(screen, "check_rendering", count)
    job = job_of(tmp_path, small_tokenizer, [chat("a" * size, "b") for size in (2000, 10)])
    screened = ScreenJob(
        output_dir=job.output_dir,
        stage="fedcba9876543210",
        files=tuple(resolve(job.dataset.path)),
        dataset=job.dataset,
        source=job.source,
        tokenizer=job.tokenizer,
        train_on=job.train_on,
        max_row_bytes=1024,
    )
    statistics = screen_dataset(screened).statistics
    assert rendered == [10]
    assert (statistics["layout"]["files"], statistics["template"]["files"]) == (0, 0)


def test_an_interrupt_is_an_interrupt(
    tmp_path: Path, small_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(tmp_path, small_tokenizer, [chat("poison", "b")])
    tokenizer = load_tokenizer(job.source, job.tokenizer)
    monkeypatch.setattr(tokenizer, "_backend", Fragile(tokenizer._backend, "poison", KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        tokenize_part(job)
