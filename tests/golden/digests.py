"""Digests of published files: of their bytes, and of the values in them as other readers see them.

A logical digest is SHA-256 over one line of JSON a row (sorted keys, no spaces), so it depends on no codec, page size
or library version. Nothing of this project reads a file here: that is pyarrow, numpy and array_record alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

# Sizes of compressed files, which reports tell: they follow the libraries, not the values.
_STORED = {"stored_bytes"}


def byte_digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def logical_digest(path: Path) -> str:
    """Digest of the values in a file of any published format."""
    if path.name == "tokenizer.json":
        return digest_of(_tokenizer(path))
    return digest_of(_READERS[path.suffix](path))


def digest_of(rows: Iterable[Any]) -> str:
    """SHA-256 over rows of plain values."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True, separators=(",", ":")).encode() + b"\n")
    return digest.hexdigest()


def _parquet(path: Path) -> Iterator[Any]:
    """Names and types of the columns, our own metadata, then the rows."""
    table = pq.read_table(path)
    if path.parent.name == "rejects":
        # It quotes the messages of other libraries.
        table = table.drop_columns(["detail"])
    yield [[field.name, str(field.type)] for field in table.schema]
    metadata = table.schema.metadata or {}
    yield {k.decode(): v.decode() for k, v in metadata.items() if k.startswith(b"gristmill.")}
    yield [pq.read_metadata(path).row_group(i).num_rows for i in range(pq.read_metadata(path).num_row_groups)]
    yield from _rows(table)


def _rows(table: pa.Table) -> Iterator[Any]:
    """Rows as lists; bytes as hex, times as microseconds."""
    columns = []
    for column in table.columns:
        kind = pa.int64() if pa.types.is_timestamp(column.type) else column.type
        columns.append([v.hex() if isinstance(v, bytes) else v for v in column.cast(kind).to_pylist()])
    yield from map(list, zip(*columns, strict=True))


def _npy(path: Path) -> Iterator[Any]:
    """Type and shape of an array, its rows; of a legacy shard, its dicts and what follows the pickle."""
    # The files are those this test has just made.
    with path.open("rb") as file:
        array = np.load(file, allow_pickle=True)
        behind = file.read()
    yield [array.dtype.str, list(array.shape)]
    yield from array.tolist()
    yield behind.hex()


def _array_record(path: Path) -> Iterator[Any]:
    """Each record's own row, then those of the stream of measurements in it."""
    from array_record.python.array_record_module import ArrayRecordReader

    reader = ArrayRecordReader(str(path))
    for record in reader.read_all():
        with pa.ipc.open_stream(record) as outer:
            table = outer.read_all()
        with pa.ipc.open_stream(table["measurements"][0].as_py()) as inner:
            measurements = inner.read_all()
        yield [[field.name, str(field.type)] for field in (*table.schema, *measurements.schema)]
        yield from _rows(table.drop_columns(["measurements"]))
        yield from _rows(measurements)
    reader.close()


def _json(path: Path) -> Iterator[Any]:
    yield _without_sizes(json.loads(path.read_bytes()))


def _without_sizes(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_sizes(item) for key, item in value.items() if key not in _STORED}
    return [_without_sizes(item) for item in value] if isinstance(value, list) else value


def _tokenizer(path: Path) -> Iterator[Any]:
    """What decides ids: vocabulary, merges in order, special tokens, how text is cut."""
    raw = json.loads(path.read_bytes())
    merges = [
        merge.split(" ") if isinstance(merge, str) else merge for merge in raw["model"].get("merges", [])
    ]
    yield raw["model"]["vocab"]
    yield merges
    yield [[token["id"], token["content"], token["special"]] for token in raw["added_tokens"]]
    yield raw["pre_tokenizer"]


_READERS = {
    ".parquet": _parquet,
    ".npy": _npy,
    ".arrayrecord": _array_record,
    ".json": _json,
}
