"""Read single bins of packed shards as numpy views: index shards once, open them as needed, decode groups once.

A Parquet row group is decoded whole and kept while the groups around it are read. Memmap rows are views of the file.
Of each shard only its group offsets are kept; at most 16 are open at a time: a memmap costs five file descriptors, a
Parquet footer of 256 row groups 1.1 MB, and parsing it again 0.9 ms. Open shards are dropped when the object is
pickled or the process forks. Threads decode one at a time: two that read one Parquet file crash the process.
"""

from __future__ import annotations

import bisect
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.errors import ConfigError
from tasks.sft.datasets.order import WINDOW
from tasks.sft.datasets.values import Values
from tasks.sft.shards.find import open_shard
from tasks.sft.shards.invariants import RawBins
from tasks.sft.shards.memmap_reader import MemmapShard
from tasks.sft.shards.parquet_reader import ParquetShard
from tasks.sft.shards.shard import BadShardError, Shard, ShardMetadata

# input_ids int32[n], seq_boundaries int64[sequences + 1], loss_mask uint8[n]; all `Values`, read-only.
Bin = tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.uint8]]

# Bins read together if the format has no row groups; the same as the row groups we write.
GROUP_BINS = 64
_OPEN_SHARDS = 16


class _Group:
    """Decoded bins, with the boundaries of all of them computed at once."""

    def __init__(self, bins: RawBins, where: str) -> None:
        _check(bins, where)
        self._ids = _as(bins.ids, np.int32, where).view(Values)
        self._mask = _as(bins.mask, np.uint8, where).view(Values)
        self._offsets = bins.ids_offsets.tolist()
        self._boundaries, ends = _boundaries(bins.starts, bins.starts_offsets, np.diff(bins.ids_offsets))
        self._ends = ends.tolist()
        self.num_bins = bins.num_bins

    def bin(self, row: int) -> Bin:
        tokens = slice(self._offsets[row], self._offsets[row + 1])
        return self._ids[tokens], self._boundaries[self._ends[row] : self._ends[row + 1]], self._mask[tokens]


class _Mapped:
    """Rows of a memmap shard."""

    def __init__(self, shard: MemmapShard) -> None:
        lengths, offsets = shard.index
        # Slicing a `numpy.memmap` costs ten times as much.
        self._ids, self._mask = (
            np.asarray(shard.arrays[name]).view(Values) for name in ("input_ids", "loss_mask")
        )
        starts = np.asarray(shard.arrays["seq_starts"])
        self._boundaries, self._ends = _boundaries(starts, offsets, lengths)
        self._lengths = lengths

    def bin(self, row: int) -> Bin:
        length = self._lengths[row]
        boundaries = self._boundaries[self._ends[row] : self._ends[row + 1]]
        return self._ids[row, :length], boundaries, self._mask[row, :length]


def _boundaries(
    starts: NDArray[Any], offsets: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the starts of each bin followed by its length, flat, and the offset of each bin in that array."""
    ends = offsets + np.arange(len(offsets))
    boundaries = np.insert(starts.astype(np.int64), offsets[1:], lengths)
    boundaries.flags.writeable = False
    return boundaries.view(Values), ends


def _as(values: NDArray[Any], dtype: type[np.integer[Any]], where: str) -> NDArray[Any]:
    """Convert `values` to `dtype`, without a copy if possible."""
    if values.dtype == dtype:
        return values
    limits = np.iinfo(dtype)
    if len(values) and (values.min() < limits.min or values.max() > limits.max):
        raise BadShardError.of(
            Path(where), ("range", f"a value is outside {limits.min}..{limits.max}"), code="bad_rows"
        )
    converted = values.astype(dtype)
    converted.flags.writeable = False
    return converted


def _check(bins: RawBins, where: str) -> None:
    """Check for what would be misread or unreadable; everything else is only validated on demand."""
    tokens = np.diff(bins.ids_offsets)
    for rows, rule, detail in (
        (bins.null_rows, "no_nulls", "a null list or a null inside a list"),
        (
            np.flatnonzero(np.diff(bins.mask_offsets) != tokens),
            "mask_length",
            "loss_mask and input_ids differ in length",
        ),
    ):
        if len(rows):
            raise BadShardError.of(
                Path(where), (rule, f"bin {rows[0]} of the group: {detail}"), code="bad_rows"
            )


# A forked process opens its own files, because its parent's locks may never be released.
_ALL: weakref.WeakSet[BinAccess] = weakref.WeakSet()


def _drop_all() -> None:
    for access in list(_ALL):
        access._drop()


os.register_at_fork(after_in_child=_drop_all)


@dataclass(frozen=True)
class ShardIndex:
    """The part of shards that is kept when they are not open.

    Attributes:
        bin_offsets: the first bin of each shard, and the end.
        group_offsets: int64[groups + 1], the first bin of each group, over all shards.
        largest_group: bins of the largest group.
        metadata: the metadata on which all shards agree.
    """

    bin_offsets: list[int]
    group_offsets: NDArray[np.int64]
    largest_group: int
    metadata: ShardMetadata


class BinAccess:
    """Access to any bin of several shards.

    Args:
        paths: local paths, or URIs of Parquet files.
        window: how many bins are kept decoded, besides two groups at the edges of a window.
    """

    def __init__(self, paths: Sequence[Path | str], window: int = WINDOW) -> None:
        self.paths = tuple(paths)
        self._window = window
        self._index: ShardIndex | None = None
        self._drop()
        _ALL.add(self)

    def _drop(self) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[int, Shard] = OrderedDict()
        self._mapped: dict[int, _Mapped] = {}
        self._groups: OrderedDict[int, _Group] = OrderedDict()
        self._held = 0
        self._last: tuple[int, int, _Group | None] = (0, 0, None)

    def __getstate__(self) -> dict[str, Any]:
        return {name: vars(self)[name] for name in ("paths", "_window", "_index")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._drop()
        _ALL.add(self)

    @property
    def index(self) -> ShardIndex:
        """The index of all shards, read on first access.

        Raises:
            BadShardError: a file is not a readable shard.
            ConfigError: the shards have different pack sizes, counts or tokenizers.
        """
        if self._index is None:
            self._index = _index(self.paths)
        return self._index

    def bin(self, number: int) -> Bin:
        """Return the bin `number`, 0 <= number < bins.

        Raises:
            BadShardError: the bin cannot be read.
        """
        first, end, group = self._last
        if group is not None and first <= number < end:
            return group.bin(number - first)
        index = self.index
        shard = bisect.bisect_right(index.bin_offsets, number) - 1
        mapped = self._mapped.get(shard)
        if mapped is not None:
            return mapped.bin(number - index.bin_offsets[shard])
        with self._lock:
            return self._decoded(number, shard)

    def _decoded(self, number: int, shard: int) -> Bin:
        index = self.index
        if isinstance(self._shard(shard), MemmapShard):
            return self._mapped[shard].bin(number - index.bin_offsets[shard])
        at = int(np.searchsorted(index.group_offsets, number, side="right")) - 1
        first, end = index.group_offsets[at : at + 2].tolist()
        group = self._group(at, shard, first, end)
        self._last = first, end, group
        return group.bin(number - first)

    def close(self) -> None:
        """Close all files; the next access opens them again."""
        for shard in self._open.values():
            shard.close()
        self._drop()

    def _group(self, at: int, shard: int, first: int, end: int) -> _Group:
        group = self._groups.get(at)
        if group is not None:
            self._groups.move_to_end(at)
            return group
        start = self.index.bin_offsets[shard]
        where = f"{self.paths[shard]}:{first - start}"
        blocks = list(self._shard(shard).blocks(first - start, end - start, end - first))
        if len(blocks) != 1 or blocks[0].num_bins != end - first:
            raise BadShardError.of(Path(where), ("readable", "the shard has changed since it was opened"))
        group = _Group(blocks[0], where)
        limit = self._window + 2 * self.index.largest_group
        while self._held + group.num_bins > limit and self._groups:
            self._held -= self._groups.popitem(last=False)[1].num_bins
        self._groups[at] = group
        self._held += group.num_bins
        return group

    def _shard(self, number: int) -> Shard:
        shard = self._open.get(number)
        if shard is not None:
            self._open.move_to_end(number)
            return shard
        if len(self._open) >= _OPEN_SHARDS:
            oldest, old = self._open.popitem(last=False)
            self._mapped.pop(oldest, None)
            old.close()
        shard = self._open[number] = open_shard(self.paths[number])
        if isinstance(shard, MemmapShard):
            self._mapped[number] = _Mapped(shard)
        return shard


def _index(paths: Sequence[Path | str]) -> ShardIndex:
    bin_offsets, groups = [0], [np.zeros(1, np.int64)]
    seen: dict[str, tuple[Any, Path | str]] = {}
    for path in paths:
        with open_shard(path) as shard:
            if isinstance(shard, ParquetShard):
                offsets = shard.group_offsets
            else:
                offsets = np.append(np.arange(0, shard.num_bins, GROUP_BINS), shard.num_bins)
            metadata = shard.metadata
        groups.append(offsets[1:] + bin_offsets[-1])
        bin_offsets.append(bin_offsets[-1] + int(offsets[-1]))
        for name in ("pack_size", "count", "tokenizer_digest", "vocabulary_size"):
            value = getattr(metadata, name)
            known, where = seen.setdefault(name, (value, path)) if value is not None else (None, path)
            if known != value:
                raise ConfigError(
                    f"the shards differ in {name}: {known} in {where}, {value} here; they cannot form one data set",
                    code="mixed_shards",
                    where=str(path),
                )
    agreed = {name: value for name, (value, _) in seen.items()}
    group_offsets = np.concatenate(groups)
    largest = int(np.diff(group_offsets).max(initial=0))
    return ShardIndex(bin_offsets, group_offsets, largest, ShardMetadata(**agreed))
