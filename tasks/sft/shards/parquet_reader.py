"""Read a packed Parquet shard, from Gristmill or another tool, block by block.

A shard behind a URI is read through fsspec, range by range, without copying the whole file.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from schemas.sft import StorageFormat
from tasks.sft.shards.invariants import RawBins
from tasks.sft.shards.parquet_writer import PACKED_FIELDS
from tasks.sft.shards.shard import BLOCK_ROWS, BadShardError, Opened, ShardMetadata
from tasks.storage.parquet import parquet_file
from tasks.storage.remote import open_uri


class ParquetShard(Opened):
    """See `tasks.sft.shards.shard.Shard`. Other integer types, large lists and additional columns are accepted."""

    format = StorageFormat.PARQUET

    def __init__(self, path: Path | str) -> None:
        self.path: Any = path

    @cached_property
    def _handle(self) -> Any:
        return open_uri(str(self.path))

    @cached_property
    def _file(self) -> pq.ParquetFile:
        try:
            # Read a whole column chunk at a time: row groups are small, and bins are requested group by group.
            source = self.path if isinstance(self.path, Path) else self._handle
            file = parquet_file(source, buffer_size=0)
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(error) from error
        faults = list(_schema_faults(file.schema_arrow))
        if faults:
            file.close()
            raise BadShardError.of(self.path, *faults)
        return file

    @property
    def num_bins(self) -> int:
        return int(self._file.metadata.num_rows)

    @cached_property
    def group_offsets(self) -> NDArray[np.int64]:
        """int64[row groups + 1]: the first bin of each row group, and the end."""
        metadata = self._file.metadata
        rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        return np.cumsum([0, *rows], dtype=np.int64)

    @cached_property
    def metadata(self) -> ShardMetadata:
        raw = self._file.schema_arrow.metadata or {}
        try:
            return ShardMetadata.parse({key.decode(): value.decode() for key, value in raw.items()})
        except ValueError as error:
            raise BadShardError.of(
                self.path, ("metadata", f"the file's metadata is not readable: {error}")
            ) from error

    def longest_bin(self) -> int:
        """See `Shard.longest_bin`."""
        longest = 0
        # The mask is the smaller of the two columns with the length.
        for batch in self._batches(0, self.num_bins, 1024, ["loss_mask"]):
            offsets = batch.column(0).offsets.to_numpy()
            longest = max(longest, int(np.diff(offsets).max(initial=0)))
        return longest

    def blocks(self, first: int = 0, end: int | None = None, rows: int = BLOCK_ROWS) -> Iterator[RawBins]:
        """See `Shard.blocks`."""
        end = self.num_bins if end is None else min(end, self.num_bins)
        for batch in self._batches(first, end, rows, list(PACKED_FIELDS)):
            yield _raw_bins(batch)

    def _batches(self, first: int, end: int, rows: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield rows `[first, end)`, reading only the row groups that contain them."""
        starts, ends = self.group_offsets[:-1], self.group_offsets[1:]
        groups = np.flatnonzero((starts < end) & (ends > first)).tolist()
        if not groups:
            return
        row = int(starts[groups[0]])
        try:
            for batch in self._file.iter_batches(rows, row_groups=groups, columns=columns, use_threads=False):
                low, high = max(first - row, 0), min(end - row, batch.num_rows)
                row += batch.num_rows
                if low < high:
                    yield batch.slice(low, high - low) if high - low < batch.num_rows else batch
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> BadShardError:
        return BadShardError.of(self.path, ("readable", f"not a readable Parquet file: {error}"))

    def close(self) -> None:
        """Close the file; the next access opens it again."""
        opened = [vars(self)[name] for name in ("_file", "_handle") if name in vars(self)]
        for file in opened:
            file.close()
        super().close()


def _schema_faults(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    for column, expected in PACKED_FIELDS.items():
        index = schema.get_field_index(column)
        if index < 0:
            yield "schema", f"the column {column!r} is missing or occurs twice"
            continue
        found = schema.field(index).type
        is_list = pa.types.is_list(found) or pa.types.is_large_list(found)
        if not is_list or not pa.types.is_integer(found.value_type):
            yield "schema", f"{column!r} is {found}, expected {expected}"


def _raw_bins(batch: pa.RecordBatch) -> RawBins:
    nulls = _has_null(batch)
    if nulls.any():
        batch = batch.filter(pa.array(~nulls))
    parts: dict[str, NDArray[Any]] = {}
    for name, part in zip(PACKED_FIELDS, ("ids", "mask", "starts"), strict=True):
        column = batch.column(batch.schema.get_field_index(name))
        offsets = _offsets(column)
        if nulls.any():
            lengths = np.zeros(len(nulls) + 1, np.int64)
            lengths[1:][~nulls] = np.diff(offsets)
            offsets = np.cumsum(lengths)
        parts |= {part: column.flatten().to_numpy(zero_copy_only=False), f"{part}_offsets": offsets}
    return RawBins(**parts, null_rows=np.flatnonzero(nulls))


def _has_null(batch: pa.RecordBatch) -> NDArray[np.bool_]:
    """Mark the rows that are null in a column or contain a null inside a list."""
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
