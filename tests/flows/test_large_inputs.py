"""Inputs that are too large to be read before a run starts: its tasks read them, and only what is new."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from support import Serial, entry_of, mill_of

from flows.cli.registry import run_or_find
from flows.cli.summary import Summary
from tasks.inputs import survey
from tasks.inputs.files import InputFile
from tasks.inputs.survey import blocks_of, survey_here
from tasks.run.contract import Domain
from tasks.run.identity import Identity, Source, mapped_survey, read_inputs
from tasks.run.receipts import Verify
from tasks.runtime import progress
from tasks.runtime.step import step

COUNT_WORDS = entry_of("contract.word_counts:ENTRY")
DOMAIN = Domain("test", 1, {})


def write_rows(path: Path, rows: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"text": f"{path.stem} {row} {'x' * 400}"}) + "\n" for row in range(rows)]
    path.write_text("".join(lines))
    os.utime(path, (1_000_000_000, 1_000_000_000))
    return path


class Seen:
    """The stages of a run, with how many of their tasks were reused."""

    def __init__(self) -> None:
        self.stages: dict[str, tuple[int, int]] = {}

    def started(self, stage: str, total: int) -> None:
        self.stages[stage] = (total, 0)

    def advanced(self, stage: str, done: int, reused: int) -> None:
        self.stages[stage] = (self.stages[stage][0], reused)

    def ended(self, stage: str, done: int, reused: int, seconds: float) -> None:
        pass


def test_tasks_read_what_is_new(prefect_api: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "FEW_BYTES", 100_000)
    monkeypatch.setattr(survey, "BLOCK_BYTES", 1 << 20)
    monkeypatch.setattr("tasks.run.identity.BLOCK_BYTES", 1 << 20)
    monkeypatch.setattr("tasks.inputs.fingerprint._SETTLED_NS", -(10**18))
    # Of 3 blocks each.
    for name in "ab":
        write_rows(tmp_path / "in" / f"{name}.jsonl", 6000)
    out = tmp_path / "out"
    config = COUNT_WORDS.parse({"output_dir": str(out), "input": str(tmp_path / "in")})

    def run() -> tuple[Summary, dict[str, tuple[int, int]]]:
        seen = Seen()
        with progress.watching(seen):
            return run_or_find(COUNT_WORDS, config, "threads", Verify.SIZE, False), seen.stages

    first, stages = run()
    assert stages["fingerprint"] == (6, 0)
    assert first.manifest.ledger.rows_used == 12_000
    alone, _ = mill_of(
        COUNT_WORDS, COUNT_WORDS.parse({**config.model_dump(), "output_dir": str(tmp_path / "alone")})
    )
    assert (alone.run_hash, alone.outputs) == (first.manifest.run_hash, first.manifest.outputs)
    again, stages = run()
    assert (again.cached, stages) == (True, {})
    # Without the memo the receipts of those tasks say what is in the files, and the run turns out to be complete.
    (out / "stages" / "fingerprints.json").unlink()
    again, stages = run()
    assert stages == {"fingerprint": (6, 6)}
    assert again.manifest == first.manifest
    write_rows(tmp_path / "in" / "c.jsonl", 2000)
    more, stages = run()
    assert stages["fingerprint"] == (1, 0)
    # The pieces of the others stay as they are.
    assert stages["count"] == (7, 6)
    assert more.manifest.ledger.rows_used == 14_000


def test_a_job_reads_a_block_or_many_small_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "FEW_BYTES", 0)
    monkeypatch.setattr(survey, "BLOCK_BYTES", 1000)
    monkeypatch.setattr("tasks.run.identity.BLOCK_BYTES", 1000)
    monkeypatch.setattr("tasks.inputs.fingerprint._SETTLED_NS", -(10**18))
    sizes = [0, 300, 600, 200, 2500, 10]
    for number, size in enumerate(sizes):
        (tmp_path / f"{number}.jsonl").write_bytes(bytes(size))
    blocks = [
        block
        for number, size in enumerate(sizes)
        for block in blocks_of(str(tmp_path / f"{number}.jsonl"), size)
    ]
    serial, kernel = Serial(tmp_path / "out"), step("fingerprint", read_inputs)
    jobs = []

    def each(some):  # type: ignore[no-untyped-def]
        jobs.extend(some)
        return serial.each(kernel, some)

    read = mapped_survey(DOMAIN, tmp_path / "out", each)
    assert read(blocks) == survey_here(blocks)
    assert [job.weight for job in jobs] == [900, 200, 1000, 1000, 510]
    assert [content.digest for content in read(blocks)][1] == hashlib.sha256(bytes(300)).hexdigest()
    assert len(serial.executed) == 5
    # A file that has changed is read again, with those that share its job.
    (tmp_path / "3.jsonl").write_bytes(bytes(199) + b"\n")
    assert read(blocks) == survey_here(blocks)
    assert len(serial.executed) == 6


def test_a_file_that_may_still_change_is_read_by_every_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "FEW_BYTES", 0)
    (tmp_path / "a.jsonl").write_bytes(b"{}\n")
    serial, kernel = Serial(tmp_path / "out"), step("fingerprint", read_inputs)
    read = mapped_survey(DOMAIN, tmp_path / "out", lambda jobs: serial.each(kernel, jobs))
    blocks = blocks_of(str(tmp_path / "a.jsonl"), 3)
    assert read(blocks) == read(blocks)
    assert len(serial.executed) == 2


def test_large_files_that_cannot_be_cut_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.run.identity.LARGEST_PIECE", 30)
    rows = b'{"text": "one two"}\n' * 100
    write_rows(tmp_path / "in" / "plain.jsonl", 9)
    (tmp_path / "in" / "large.jsonl.gz").write_bytes(gzip.compress(rows))
    (tmp_path / "in" / "small.jsonl.zst").write_bytes(pa.Codec("zstd").compress(rows[:20], asbytes=True))
    raw = {"output_dir": str(tmp_path / "out"), "input": str(tmp_path / "in")}
    manifest, _ = mill_of(COUNT_WORDS, COUNT_WORDS.parse(raw))
    assert manifest.warnings == (
        "large.jsonl.gz of input has 0.0 GiB and is read by a single task, because it is one gzip member, "
        "or has one above 256 MiB; give it as several files, uncompressed, or compressed by bgzip",
    )


@pytest.mark.parametrize(
    ("name", "remedies"),
    [
        ("a.csv.zst", "as several files, or as Parquet"),
        ("a.csv", "as several files, or as Parquet"),
        ("a.jsonl.zst", "as several files, uncompressed, or compressed by pzstd"),
        ("a.jsonl.bz2", "as several files, or uncompressed"),
        ("a.parquet", None),
    ],
)
def test_a_remedy_is_one_for_this_format(name: str, remedies: str | None) -> None:
    file = InputFile(Path(name), name, 1 << 30)
    source = Source("input", "input", (file,), ("0" * 64,), ((),))
    warnings = Identity(run_hash="0" * 16, sources=(source,), seen={}).warnings()
    assert [one.partition("; give it ")[2] for one in warnings] == ([remedies] if remedies else [])
