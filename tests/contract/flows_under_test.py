"""The four flows and one that only the tests have, with inputs for the suites of the run contract."""

from __future__ import annotations

import gzip
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from contract.suite import Workload
from probes.measurements import START, row, write_rows
from support import chat, write_jsonl

_FILES = ("a", "b", "nested/c")


def _dealt(rows: list[Any]) -> dict[str, list[Any]]:
    """The rows, dealt to three files."""
    return {name: rows[number :: len(_FILES)] for number, name in enumerate(_FILES)}


def _write_texts(source: Path, bad_rows: int, good_rows: int) -> None:
    texts = [f"document {number} " * (1 + number % 7) for number in range(good_rows)] + [None] * bad_rows
    for name, some in _dealt(texts).items():
        path = source / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"text": pa.array(some, pa.string())}), path)


def _truncate(path: Path) -> str:
    path.write_bytes(path.read_bytes()[:-20])
    return path.name


class PackSft(Workload):
    flow = "pack-sft"

    def write(self, source: Path, bad_rows: int = 0, good_rows: int = 60) -> None:
        good = [chat(f"question {n} " * (1 + n % 9), f"answer {n} " * (1 + n % 5)) for n in range(good_rows)]
        for name, rows in _dealt([*good, *[{"messages": "none"}] * bad_rows]).items():
            write_jsonl(source / f"{name}.jsonl", rows)

    def spoil(self, source: Path) -> str:
        data = gzip.compress(json.dumps(chat("question", "answer")).encode() * 99)
        (source / "b.jsonl.gz").write_bytes(data[:-20])
        return "b.jsonl.gz"

    def raw(self, source: Path, output_dir: Path) -> dict[str, Any]:
        return {
            "output_dir": str(output_dir),
            "datasets": [{"name": "chats", "path": str(source)}],
            "tokenizer": {"path": str(self.tokenizer)},
            "pack": {"size": 128},
            "storage": {"shard_tokens": 500},
            "splits": {"train": 0.8, "valid": 0.2, "test": 0},
        }

    def change(self, raw: dict[str, Any]) -> dict[str, Any]:
        return {**raw, "pack": {"size": 256}}


class SampleCorpus(Workload):
    flow = "sample-corpus"

    def write(self, source: Path, bad_rows: int = 0, good_rows: int = 60) -> None:
        _write_texts(source / "bucket", bad_rows, good_rows)

    def spoil(self, source: Path) -> str:
        return _truncate(source / "bucket" / "b.parquet")

    def inside(self, source: Path) -> Path:
        return source / "bucket"

    def raw(self, source: Path, output_dir: Path) -> dict[str, Any]:
        buckets = {"bucket": {"count": 40}}
        return {
            "output_dir": str(output_dir),
            "datasets": {"web": {"name": "web", "source": str(source), "buckets": buckets}},
            "max_rows": 15,
        }

    def change(self, raw: dict[str, Any]) -> dict[str, Any]:
        return {**raw, "random_seed": 7}


class TrainTokenizer(Workload):
    flow = "train-tokenizer"

    def write(self, source: Path, bad_rows: int = 0, good_rows: int = 60) -> None:
        _write_texts(source, bad_rows, good_rows)

    def spoil(self, source: Path) -> str:
        return _truncate(source / "b.parquet")

    def raw(self, source: Path, output_dir: Path) -> dict[str, Any]:
        return {"output_dir": str(output_dir), "sample": str(source), "vocabulary_size": 300}

    def change(self, raw: dict[str, Any]) -> dict[str, Any]:
        return {**raw, "vocabulary_size": 290}


class BuildProbeRows(Workload):
    flow = "build-probe-rows"

    def write(self, source: Path, bad_rows: int = 0, good_rows: int = 60) -> None:
        good = [
            row(event_time=START + timedelta(seconds=n), src_addr=f"10.0.{n % 9}.1", rtt=1.0 + n)
            for n in range(good_rows)
        ]
        for name, rows in _dealt([*good, *[row(rtt=None)] * bad_rows]).items():
            write_rows(source / f"{name}.parquet", rows)

    def spoil(self, source: Path) -> str:
        return _truncate(source / "b.parquet")

    def raw(self, source: Path, output_dir: Path) -> dict[str, Any]:
        return {"output_dir": str(output_dir), "input": str(source), "train_ratio": 0.7}

    def change(self, raw: dict[str, Any]) -> dict[str, Any]:
        return {**raw, "seed": 7}


class CountWords(Workload):
    """The flow of docs/architecture.md, which shows how a fifth one is written."""

    flow = "contract.word_counts:ENTRY"

    def write(self, source: Path, bad_rows: int = 0, good_rows: int = 60) -> None:
        good = [{"text": f"word{n % 11} and word{n % 7} " * 5} for n in range(good_rows)]
        for name, rows in _dealt([*good, *[{"text": None}] * bad_rows]).items():
            write_jsonl(source / f"{name}.jsonl", rows)

    def spoil(self, source: Path) -> str:
        (source / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "word"}\n' * 99)[:-20])
        return "b.jsonl.gz"

    def raw(self, source: Path, output_dir: Path) -> dict[str, Any]:
        return {"output_dir": str(output_dir), "input": str(source)}

    def change(self, raw: dict[str, Any]) -> dict[str, Any]:
        return {**raw, "min_count": 3}
