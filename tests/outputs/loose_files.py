"""Small files of every kind, written with pyarrow and other libraries alone, as another tool would."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from probes.records import measurements, record, write_records
from sft.shard_files import foreign_memmap, foreign_npy, foreign_parquet, random_rows

ROWS = random_rows(5)
REJECT_TYPES = {"source_file": pa.string(), "row": pa.int64(), "reason": pa.string(), "detail": pa.string()}


def documents(path: Path, texts: Any = ("one", "two", "three"), **columns: Any) -> Path:
    """A sample shard; `columns` replace its columns, or leave one out with `None`."""
    size = len(texts)
    table = {"text": texts, "source_dataset": ["web"] * size, "source_bucket": ["a"] * size, **columns}
    pq.write_table(pa.table({name: column for name, column in table.items() if column is not None}), path)
    return path


def rejects(path: Path, reasons: Any = ("bad", "bad", "worse"), **columns: Any) -> Path:
    """A reject file; `columns` replace its columns, or leave one out with `None`."""
    size = len(reasons)
    table = {
        "source_file": ["f.jsonl"] * size, "row": list(range(size)), "reason": reasons, "detail": ["why"] * size,
        **columns,
    }  # fmt: skip
    arrays = {
        name: column if isinstance(column, pa.Array) else pa.array(column, REJECT_TYPES[name])
        for name, column in table.items()
        if column is not None
    }
    pq.write_table(pa.table(arrays), path)
    return path


def probe_rows(path: Path) -> Path:
    times = [(1_600_000_000_000_000 + n, "192.0.2.1", n - 1.0) for n in range(4)]
    return write_records(path, [record(f"10.0.0.{n}", measurements(times)) for n in range(3)])


def tokenizer(path: Path, vocabulary: dict[str, int] | None = None) -> Path:
    from tokenizers import Tokenizer, models

    words = {"<unk>": 0, "a": 1, "b": 2}
    described = json.loads(Tokenizer(models.WordLevel(words, unk_token="<unk>")).to_str())
    # Not by the library, which leaves out what shares an id.
    described["model"]["vocab"] = vocabulary or words
    path.write_text(json.dumps(described))
    return path


# By kind: a name that tells it, and what writes it.
FILES: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "packed Parquet": ("s.parquet", lambda path: foreign_parquet(path, ROWS)),
    "packed npy": ("s.npy", lambda path: foreign_npy(path, ROWS)),
    "packed memmap": ("shard", lambda path: foreign_memmap(path, ROWS)),
    "sampled documents": ("d.parquet", documents),
    "probe rows": ("p.arrayrecord", probe_rows),
    "tokenizer": ("tokenizer.json", tokenizer),
    "rejected rows": ("r.parquet", rejects),
}


def kind_of(name: str) -> str:
    """What the table of domains calls a kind of `FILES`."""
    return "packed bins" if name.startswith("packed") else name


def write(folder: Path, name: str) -> Path:
    """A file of a kind of `FILES`, in a folder that is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    return FILES[name][1](folder / FILES[name][0])
