"""Read intervals of a spool."""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from schemas.errors import IntegrityError
from tasks.spool.layout import BUCKET_BITS, BUCKETS, FOOTER, INDEX, MAGIC, padded
from tasks.storage.reading import open_ranges

# Up to this many entries, the index is read whole.
_SHORT_INDEX = 1 << 10
_SHIFT = np.uint64(64 - BUCKET_BITS)


class RangeReader(Protocol):
    """A file that is read by ranges."""

    @property
    def bytes(self) -> int:
        """Its size."""

    def read(self, at: int, size: int) -> builtins.bytes:
        """Read `size` bytes starting at `at`; fewer only at the end of the file."""


class SpoolReader:
    """An open spool; see `tasks.spool.layout`.

    Args:
        ranges: the file; record, payload: the dtypes it was written with.
        where: its path, for errors.

    Raises:
        IntegrityError: `broken_spool`: it is not a spool of these dtypes, or not whole.
    """

    def __init__(
        self, ranges: RangeReader, record: np.dtype[Any], payload: np.dtype[Any], where: str
    ) -> None:
        self._ranges, self._record, self._payload, self._where = ranges, record, payload, where
        raw = ranges.read(max(ranges.bytes - FOOTER.itemsize, 0), FOOTER.itemsize)
        if len(raw) < FOOTER.itemsize or not raw.startswith(MAGIC):
            raise self.broken("it has no footer of a spool")
        [footer] = np.frombuffer(raw, FOOTER)
        self.num_items, self.num_records = int(footer["items"]), int(footer["records"])
        self.num_entries, self.stride = int(footer["entries"]), int(footer["stride"])
        self._buckets = int(footer["buckets"])
        self._known: tuple[int, int, int, NDArray[np.uint64]] | None = None
        sizes = (int(footer["payload_size"]), int(footer["record_size"]))
        if sizes != (payload.itemsize, record.itemsize):
            raise self.broken(
                f"items and records have {sizes} bytes; expected {payload.itemsize, record.itemsize}"
            )
        self._records_at = padded(self.num_items * payload.itemsize)
        self._index_at = self._records_at + padded(self.num_records * record.itemsize)
        self._histogram_at = self._index_at + self.num_entries * INDEX.itemsize
        self._extra_at = self._histogram_at + 2 * 4 * self._buckets
        whole = self._extra_at + 8 * int(footer["extra_words"]) + FOOTER.itemsize
        if whole != ranges.bytes:
            raise self.broken(f"it has {ranges.bytes} bytes; its footer says {whole}")

    def broken(self, reason: str) -> IntegrityError:
        """Return the error that says what is wrong with this spool."""
        return IntegrityError(
            f"this spool is damaged: {reason}; delete its stage folder and run again",
            code="broken_spool",
            where=self._where,
        )

    @cached_property
    def index(self) -> NDArray[Any]:
        """`INDEX[entries]`: every `stride`-th record."""
        return self._array(self._index_at, self.num_entries, INDEX)

    def histogram(self, distinct: bool) -> NDArray[np.int64]:
        """Return the items by the upper 12 bits of their record's position: int64[4096]."""
        if self._buckets:
            at = self._histogram_at + (4 * BUCKETS if distinct else 0)
            return self._array(at, BUCKETS, np.dtype("<u4")).astype(np.int64)
        bucket = (self.index["position"] >> _SHIFT).astype(np.int64)
        return np.bincount(bucket, self.weights(distinct), BUCKETS).astype(np.int64)

    def weights(self, distinct: bool) -> NDArray[np.int64]:
        """Return the items of each entry of the index and of the records up to the next: int64[entries]."""
        before = self.index["distinct" if distinct else "items"].astype(np.int64)
        total = self.num_items if distinct else self._all_items
        return np.diff(before, append=total)

    @cached_property
    def _all_items(self) -> int:
        """Items of all records, shared ones counted as often as they are shared."""
        if not self.num_entries:
            return 0
        last = (self.num_entries - 1) * self.stride
        tail = self._array(
            self._records_at + last * self._record.itemsize, self.num_records - last, self._record
        )
        return int(self.index["items"][-1]) + int(tail["length"].sum())

    def records(self, low: int, high: int) -> NDArray[Any]:
        """Read the records with positions in `[low, high)`, in order; `high` may be 2**64."""
        if low >= high or not self.num_records:
            return np.zeros(0, self._record)
        bounds = np.array([low, high - 1], np.uint64)
        at, entries = self._near(low, high)
        first = (at + max(int(np.searchsorted(entries, bounds[0], "left")) - 1, 0)) * self.stride
        end = min((at + int(np.searchsorted(entries, bounds[1], "right"))) * self.stride, self.num_records)
        some = self._array(
            self._records_at + first * self._record.itemsize, max(end - first, 0), self._record
        )
        inside = slice(
            int(np.searchsorted(some["position"], bounds[0], "left")),
            int(np.searchsorted(some["position"], bounds[1], "right")),
        )
        return some[inside]

    def entries(self, low: int, high: int) -> NDArray[np.uint64]:
        """Return the positions in `[low, high)` of every `stride`-th record of the spool: uint64[entries]."""
        if low >= high:
            return np.zeros(0, np.uint64)
        _, entries = self._near(low, high)
        return entries[(entries >= np.uint64(low)) & (entries <= np.uint64(high - 1))]

    def _near(self, low: int, high: int) -> tuple[int, NDArray[np.uint64]]:
        """Return the positions of the index around `[low, high)`, and the number of the first of them.

        Positions are hashes, so the place of one in a long index is known to within a few standard deviations. What
        was read serves the intervals inside, too.
        """
        if "index" in self.__dict__ or self.num_entries <= _SHORT_INDEX:
            return 0, self.index["position"]
        if self._known is not None and self._known[0] <= low and high <= self._known[1]:
            return self._known[2:]
        margin = 4 * int(self.num_entries**0.5)
        first = max((low * self.num_entries >> 64) - margin, 0)
        end = min((high * self.num_entries >> 64) + margin, self.num_entries)
        found = self._array(self._index_at + first * INDEX.itemsize, end - first, INDEX)["position"]
        if (first and found[0] >= low) or (end < self.num_entries and found[-1] < high):
            return 0, self.index["position"]
        self._known = low, high, first, found
        return first, found

    def read_extra(self, at: int, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Read `count` values from the byte `at` of the section `extra`."""
        return self._array(self._extra_at + at, count, dtype)

    def items(self, first: int, end: int) -> NDArray[Any]:
        """Read the items `[first, end)`."""
        return self._array(first * self._payload.itemsize, end - first, self._payload)

    def _array(self, at: int, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        raw = self._ranges.read(at, count * dtype.itemsize)
        if len(raw) != count * dtype.itemsize:
            raise self.broken("it is shorter than its footer says")
        return np.frombuffer(raw, dtype)


@contextlib.contextmanager
def open_spool(path: Path, record: np.dtype[Any], payload: np.dtype[Any]) -> Iterator[SpoolReader]:
    """Open a spool for reading.

    Raises:
        IntegrityError: see `SpoolReader`.
    """
    with open_ranges(path) as ranges:
        yield SpoolReader(ranges, record, payload, str(path))
