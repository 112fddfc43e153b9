"""Write a run from sorted batches: they wait in a file without a name, and are merged when all are there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.packing.arrays import ranges
from tasks.probes.rows.sorting import cut_ranges
from tasks.probes.runs.layout import (
    BLOCK,
    BLOCK_ITEMS,
    ITEM,
    RUN_LIMITS,
)
from tasks.probes.runs.texts import text_buffers, used_texts
from tasks.spool.writer import write_sections
from tasks.storage.atomic import AtomicFile
from tasks.storage.scratch import Scratch

_COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class Batch:
    """Hold sorted measurements.

    Attributes:
        records: `RECORD`, sorted by position; `start` is set by the writer.
        items: `ITEM`, in the order of the records; `dst` is an index into `texts`, all of which are used.
    """

    records: NDArray[Any]
    items: NDArray[Any]
    texts: pa.StringArray


class RunWriter:
    """Merges sorted batches into one run; nothing is visible before `finish`. Memory holds records and addresses.

    Args:
        path: of the run.

    Raises:
        StorageError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._batches: list[NDArray[Any]] = []
        self._texts: list[pa.StringArray] = []
        self._num_texts = 0
        self._size = dict.fromkeys((*RUN_LIMITS, "dst_bytes"), 0)
        with contextlib.ExitStack() as stack:
            self._file = stack.enter_context(AtomicFile(path))
            self._arrived = stack.enter_context(Scratch(path.parent))
            self._extra = stack.enter_context(Scratch(path.parent))
            self._stack = stack.pop_all()

    def append(self, batch: Batch) -> None:
        """Add a batch, whose arrays are then the writer's."""
        records, items = batch.records, batch.items
        records["start"] = (
            self._size["rows"] + np.cumsum(records["length"], dtype=np.uint64) - records["length"]
        )
        items["dst"] += self._num_texts
        self._arrived.append(items)
        self._batches.append(records)
        self._texts.append(batch.texts)
        self._num_texts += len(batch.texts)
        self._size = {name: self._size[name] + more for name, more in _size_of(batch).items()}

    def has_room(self, batch: Batch) -> bool:
        """Return whether a batch still belongs into this run; into an empty one, any does."""
        more = _size_of(batch)
        return not self._batches or all(
            self._size[name] + more[name] <= most for name, most in RUN_LIMITS.items()
        )

    def statistics(self) -> dict[str, int]:
        """Return what a receipt says of the run; `dst_bytes` are those of all measurements."""
        return dict(self._size)

    def finish(self) -> AtomicFile:
        """Merge and commit; return the file, with its size and digest."""
        records = np.concatenate(self._batches)
        self._batches.clear()
        order = np.argsort(records["position"], kind="stable")
        records = records[order]
        encoded = pa.concat_arrays(self._texts).dictionary_encode()
        self._texts.clear()
        texts, codes = encoded.dictionary, encoded.indices.to_numpy()

        lengths = records["length"].astype(np.int64)
        arrived = records["start"].astype(np.int64)
        blocks = np.zeros(0, BLOCK)
        first = 0
        for low, high in cut_ranges(lengths, BLOCK_ITEMS):
            items = self._gather(arrived[low:high], lengths[low:high])
            items["dst"], used = used_texts(codes[items["dst"]], texts)
            self._file.write(items)
            blocks = np.append(blocks, self._put_texts(first, used))
            first += len(items)
        records["start"] = np.cumsum(lengths) - lengths
        write_sections(self._file, records, lengths.astype(np.uint64), ITEM.itemsize, self._sections(blocks))
        self._stack.close()
        return self._file

    def _gather(self, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[Any]:
        """Read the items of some records, in this order; what lies side by side is read at once."""
        order = np.argsort(starts)
        begins, ends = starts[order], starts[order] + lengths[order]
        gaps = np.flatnonzero(begins[1:] != ends[:-1]) + 1
        items = np.empty(int(lengths.sum()), ITEM)
        at = 0
        for low, high in zip(begins[[0, *gaps]].tolist(), ends[[*(gaps - 1), -1]].tolist(), strict=True):
            self._arrived.read_into(items[at : at + high - low], low * ITEM.itemsize)
            at += high - low
        if (order[1:] > order[:-1]).all():
            return items
        places = np.empty_like(starts)
        places[order] = np.cumsum(lengths[order]) - lengths[order]
        # As numbers of 16 bytes, which numpy moves three times as fast as structures.
        return items.view(np.complex128)[ranges(places, lengths)].view(ITEM)

    def _put_texts(self, first: int, texts: pa.StringArray) -> NDArray[Any]:
        ends, data = text_buffers(texts)
        at = self._extra.bytes
        for column in (ends, data):
            self._extra.append(column)
            self._extra.append(bytes(-column.nbytes % 8))
        return np.array([(first, at, len(texts), len(data))], BLOCK)

    def _sections(self, blocks: NDArray[Any]) -> Iterator[Any]:
        yield np.array([len(blocks)], "<i8")
        begin = 8 + blocks.nbytes
        blocks["at"] += begin
        yield blocks
        for start in range(0, self._extra.bytes, _COPY_BYTES):
            piece = bytearray(min(_COPY_BYTES, self._extra.bytes - start))
            self._extra.read_into(piece, start)
            yield piece

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._stack.__exit__(*exc_info)


def _size_of(batch: Batch) -> dict[str, int]:
    return {
        "rows": len(batch.items),
        "records": len(batch.records),
        "text_bytes": int(text_buffers(batch.texts)[0][-1]),
        "dst_bytes": int(batch.records["dst_bytes"].sum(dtype=np.int64)),
    }
