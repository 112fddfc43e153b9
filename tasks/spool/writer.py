"""Write a spool: records arrive in any order, with their items, and are sorted once all are there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from schemas.run import FileRecord
from tasks.spool.layout import BUCKET_BITS, BUCKETS, FOOTER, INDEX, MAGIC, padded, stride_of
from tasks.storage.atomic import AtomicFile
from tasks.storage.scratch import Scratch

_BUFFER_BYTES = 8 << 20
_SHIFT = np.uint64(64 - BUCKET_BITS)


class SpoolWriter:
    """Collects records and their items; nothing is visible before `finish`.

    The items go to a file without a name on the way, so memory holds only the records.

    Args:
        path: of the spool.
        record: dtype of a record, see `tasks.spool.layout`; payload: dtype of an item.
        same: fields that tell which records may stand for the same items; records that agree in them, in their
            position up to its lower 16 bits and in their items share these. Empty: none do.

    Raises:
        StorageError: the file cannot be written.
    """

    def __init__(
        self, path: Path, record: np.dtype[Any], payload: np.dtype[Any], same: tuple[str, ...] = ()
    ) -> None:
        self._record, self._payload, self._same = record, payload, same
        self._batches: list[NDArray[Any]] = []
        with contextlib.ExitStack() as stack:
            self._file = stack.enter_context(AtomicFile(path))
            self._items = stack.enter_context(Scratch(path.parent))
            self._stack = stack.pop_all()

    def append(self, records: NDArray[Any], items: NDArray[Any]) -> None:
        """Add records, whose lengths add up to the number of `items`; `start` is set by the writer."""
        self._batches.append(records)
        self._items.append(np.ascontiguousarray(items, self._payload))

    def finish(self, root: Path) -> FileRecord:
        """Sort and commit the file; return its record relative to `root`."""
        records = np.concatenate(self._batches) if self._batches else np.zeros(0, self._record)
        self._batches.clear()
        lengths = records["length"].astype(np.uint64)
        arrived = np.cumsum(lengths) - lengths
        order = np.argsort(records["position"], kind="stable")
        records, arrived, lengths = records[order], arrived[order], lengths[order]
        owner = _owners(records, self._same)
        self._check_owners(owner, arrived, lengths)
        own = owner == np.arange(len(records))
        distinct = np.where(own, lengths, np.uint64(0))
        records["start"] = (np.cumsum(distinct) - distinct)[owner]

        self._copy(arrived[own], lengths[own])
        write_sections(self._file, records, distinct, self._payload.itemsize)
        self._stack.close()
        return self._file.record(root)

    def _check_owners(
        self, owner: NDArray[np.int64], arrived: NDArray[np.uint64], lengths: NDArray[np.uint64]
    ) -> None:
        """Let every record own its items unless its owner's are the very same: a digest may leave something out."""
        size = self._payload.itemsize

        def items(record: int) -> bytes:
            content = bytearray(int(lengths[record]) * size)
            self._items.read_into(content, int(arrived[record]) * size)
            return bytes(content)

        for record in np.flatnonzero(owner != np.arange(len(owner))).tolist():
            first = int(owner[record])
            if lengths[record] != lengths[first] or items(record) != items(first):
                owner[record] = record

    def _copy(self, starts: NDArray[np.uint64], lengths: NDArray[np.uint64]) -> None:
        """Copy items from the order in which they came into that of their records."""
        size = self._payload.itemsize
        buffer = memoryview(bytearray(max(_BUFFER_BYTES, int(lengths.max(initial=0)) * size)))
        filled = 0
        for start, length in zip((starts * size).tolist(), (lengths * size).tolist(), strict=True):
            if filled + length > len(buffer):
                self._file.write(buffer[:filled])
                filled = 0
            self._items.read_into(buffer[filled : filled + length], start)
            filled += length
        self._file.write(buffer[:filled])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._stack.__exit__(*exc_info)


def write_sections(
    file: AtomicFile,
    records: NDArray[Any],
    distinct: NDArray[np.uint64],
    item_size: int,
    extra: Iterable[Any] = (),
) -> None:
    """Write everything that follows the items of a spool, which are in the file.

    Args:
        records: sorted by position, complete.
        distinct: uint64[n], items of each record, 0 where an earlier record has them.
        item_size: bytes of an item.
        extra: bytes-like objects, the content of the section `extra`.
    """
    lengths = records["length"].astype(np.uint64)
    stride = stride_of(len(records))
    index = np.zeros(-(-len(records) // stride), INDEX)
    index["position"] = records["position"][::stride]
    index["items"] = (np.cumsum(lengths) - lengths)[::stride]
    index["distinct"] = (np.cumsum(distinct) - distinct)[::stride]
    _pad(file)
    file.write(records)
    _pad(file)
    file.write(index)
    buckets = BUCKETS if len(records) > BUCKETS else 0
    if buckets:
        bucket = (records["position"] >> _SHIFT).astype(np.int64)
        for weights in (lengths, distinct):
            file.write(np.bincount(bucket, weights, BUCKETS).astype("<u4"))
    begin = file.bytes
    for some in extra:
        file.write(some)
    _pad(file)
    words = (file.bytes - begin) // 8
    sizes = (item_size, records.itemsize, buckets, words)
    file.write(np.array([(MAGIC, int(distinct.sum()), len(records), len(index), stride, *sizes)], FOOTER))


def _pad(file: AtomicFile) -> None:
    # All that is written before is whole words and one section.
    file.write(bytes(padded(file.bytes) - file.bytes))


def _owners(records: NDArray[Any], same: tuple[str, ...]) -> NDArray[np.int64]:
    """Return, for each of the sorted records, the first one that stands for the same items: int64[n]."""
    owner = np.arange(len(records))
    if not same or len(records) < 2:
        return owner
    place = records["position"] >> np.uint64(16)
    alike = place[1:] == place[:-1]
    some = np.flatnonzero(np.concatenate((alike, [False])) | np.concatenate(([False], alike)))
    columns = [place[some], *(column for name in same for column in _columns(records[name][some]))]
    # Stable, so the first of each group in the order of the spool comes first.
    order = np.lexsort(columns)
    begins = np.ones(len(order), bool)
    if len(order):
        begins[1:] = np.any([column[order][1:] != column[order][:-1] for column in columns], axis=0)
    first = some[order][np.flatnonzero(begins)]
    owner[some[order]] = first[np.cumsum(begins) - 1]
    return owner


def _columns(values: NDArray[Any]) -> list[NDArray[Any]]:
    return [values] if values.ndim == 1 else list(values.T)
