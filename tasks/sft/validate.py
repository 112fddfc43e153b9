"""Validate packed Parquet: one file, a folder of shards, or a run; made here or by another tool.

Files that carry our format version must keep every invariant. In other files a mask that ends in 1 is only
a warning: their masks are kept as they are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from schemas.sft import (
    METADATA_COUNT,
    METADATA_PACK_SIZE,
    METADATA_VERSION,
    METADATA_VOCABULARY,
    Count,
)
from schemas.verdict import ERROR, WARNING, Fault, Verdict
from tasks.sft.invariants import Limits, RawBins, check_bins
from tasks.sft.parquet_writer import PACKED_FIELDS

# Rules that are ours alone: other tools may keep the unshifted mask.
_OURS_ONLY = frozenset({"mask_ends_with_0"})
# 2 MB of ids at the default pack size: in the cache, and 200 MB less at the peak of two shards than 1,024 rows.
_BLOCK_ROWS = 128


def validate_shards(paths: list[Path], kind: str, where: str, workers: int | None = None) -> Verdict:
    """Validate packed Parquet files, several at once.

    Args:
        paths: the shards.
        kind: `file`, `folder` or `run`, for the verdict.
        where: what the user named, for the verdict.
        workers: files read at once; default the number of cores.
    """
    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        results = list(pool.map(validate_shard, paths))
    counts: dict[str, int] = {"files": len(paths)}
    faults: list[Fault] = []
    for verdict in results:
        faults += verdict.faults
        for name, value in verdict.counts.items():
            if name != "pack_size":
                counts[name] = counts.get(name, 0) + value
    sizes = {verdict.counts["pack_size"] for verdict in results if "pack_size" in verdict.counts}
    if len(sizes) > 1:
        detail = f"the shards have different pack sizes: {', '.join(map(str, sorted(sizes)))}"
        faults.append(Fault(where=where, rule="one_pack_size", detail=detail))
    return Verdict(path=where, kind=kind, counts=counts, faults=tuple(faults))


def validate_shard(path: Path) -> Verdict:
    """Validate one packed Parquet file.

    Counts in the verdict: `bins`, `sequences`, `tokens`, `trained_tokens`, and `pack_size` if the file says it.
    """
    name = str(path)
    try:
        with pq.ParquetFile(path) as file:
            faults = list(_schema_faults(file.schema_arrow, name))
            if faults:
                return Verdict(path=name, kind="file", faults=tuple(faults))
            return _check_rows(file, name)
    except (pa.ArrowException, OSError) as error:
        fault = Fault(where=name, rule="readable", detail=f"not a readable Parquet file: {error}")
        return Verdict(path=name, kind="file", faults=(fault,))


def _schema_faults(schema: pa.Schema, name: str) -> Iterator[Fault]:
    for column, expected in PACKED_FIELDS.items():
        index = schema.get_field_index(column)
        if index < 0:
            yield Fault(where=name, rule="schema", detail=f"the column {column!r} is missing or there twice")
            continue
        found = schema.field(index).type
        is_list = pa.types.is_list(found) or pa.types.is_large_list(found)
        if not is_list or not pa.types.is_integer(found.value_type):
            yield Fault(where=name, rule="schema", detail=f"{column!r} is {found}, expected {expected}")


def _check_rows(file: pq.ParquetFile, name: str) -> Verdict:
    metadata = file.schema_arrow.metadata or {}
    ours = METADATA_VERSION in metadata
    try:
        limits = _limits(metadata)
    except ValueError as error:
        fault = Fault(where=name, rule="metadata", detail=f"the file's metadata is not readable: {error}")
        return Verdict(path=name, kind="file", faults=(fault,))
    counts = {"bins": 0, "sequences": 0, "tokens": 0, "trained_tokens": 0}
    found: dict[str, tuple[int, int, str]] = {}
    for batch in file.iter_batches(_BLOCK_ROWS, columns=list(PACKED_FIELDS), use_threads=False):
        row = np.arange(counts["bins"], counts["bins"] + batch.num_rows)
        counts["bins"] += batch.num_rows
        nulls = _has_null(batch)
        if nulls.any():
            _note(found, "no_nulls", row[nulls], "a null list or a null inside a list")
            row, batch = row[~nulls], batch.filter(pa.array(~nulls))
        bins = _raw_bins(batch)
        for rule, rows, detail in check_bins(bins, limits):
            _note(found, rule, row[rows], detail)
        counts["sequences"] += len(bins.starts)
        counts["tokens"] += len(bins.ids)
        counts["trained_tokens"] += int((bins.mask != 0).sum())
    faults = [
        Fault(
            where=f"{name}:{row}",
            rule=rule,
            detail=detail,
            level=WARNING if rule in _OURS_ONLY and not ours else ERROR,
            count=count,
        )
        for rule, (row, count, detail) in found.items()
    ]
    if limits.pack_size is not None:
        counts["pack_size"] = limits.pack_size
    return Verdict(path=name, kind="file", counts=counts, faults=tuple(faults))


def _note(found: dict[str, tuple[int, int, str]], rule: str, rows: NDArray[np.int64], detail: str) -> None:
    if len(rows):
        first, count, kept = found.get(rule, (int(rows[0]), 0, detail))
        found[rule] = (first, count + len(rows), kept)


def _limits(metadata: dict[bytes, bytes]) -> Limits:
    def number(key: bytes) -> int | None:
        return int(metadata[key]) if key in metadata else None

    count = Count(metadata[METADATA_COUNT].decode()) if METADATA_COUNT in metadata else Count.RUNTIME
    return Limits(number(METADATA_PACK_SIZE), count, number(METADATA_VOCABULARY))


def _has_null(batch: pa.RecordBatch) -> NDArray[np.bool_]:
    """Which rows are null in a column, or hold a null inside a list."""
    bad = np.zeros(batch.num_rows, dtype=bool)
    for column in batch.columns:
        if column.null_count:
            bad |= column.is_null().to_numpy(zero_copy_only=False)
        if column.values.null_count:
            inner = np.flatnonzero(column.values.is_null().to_numpy(zero_copy_only=False))
            rows = np.searchsorted(column.offsets.to_numpy(), inner, side="right") - 1
            bad[rows[(rows >= 0) & (rows < len(bad))]] = True
    return bad


def _offsets(column: Any) -> NDArray[np.int64]:
    offsets: NDArray[np.int64] = column.offsets.to_numpy().astype(np.int64)
    from_0: NDArray[np.int64] = offsets - offsets[0]
    return from_0


def _raw_bins(batch: pa.RecordBatch) -> RawBins:
    parts: list[NDArray[Any]] = []
    for name in PACKED_FIELDS:
        column = batch.column(batch.schema.get_field_index(name))
        parts += [column.flatten().to_numpy(zero_copy_only=False), _offsets(column)]
    return RawBins(*parts)
