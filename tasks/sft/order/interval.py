"""Gather what the spools of a data set have in consecutive shards."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tasks.packing.arrays import lengths_to_offsets, repeated
from tasks.sft.order.positions import RING, unrotated
from tasks.sft.order.spool import ITEM, RECORD, TOKEN, open_spools
from tasks.spool.reader import SpoolReader
from tasks.storage.scratch import Scratch

# What a shard knows of a sequence: its record, and which spool it came from.
SEQUENCE = np.dtype([*((name, RECORD[name]) for name in RECORD.names or ()), ("part", "<u4")])

# Read at once from a spool.
_READ_ITEMS = (8 << 20) // ITEM.itemsize


class Window:
    """The sequences of consecutive shards, and their tokens, in a file without a name.

    Every spool is opened once, and gives one range of records, however many shards there are. Memory depends on
    neither their number nor their size.

    Args:
        edges: rotated positions; shard i is `[edges[i], edges[i + 1])`.
        turn: how far the seed rotates positions.
        folder: where the file is made.
    """

    def __init__(
        self, root: Path, stages: Sequence[str], edges: Sequence[int], turn: int, folder: Path
    ) -> None:
        self._scratch = Scratch(folder)
        # For each shard, where its records lie in the file, and how many there are: two numbers a spool.
        self._places = [array("Q") for _ in edges[1:]]
        inner = np.array([min(edge, RING - 1) for edge in edges[1:-1]], np.uint64)
        with open_spools(root, stages) as spools:
            for part, spool in enumerate(spools):
                for low, high in unrotated(edges[0], edges[-1], turn):
                    self._add(part, spool, spool.records(low, high), inner, turn)

    def _add(
        self, part: int, spool: SpoolReader, records: NDArray[Any], inner: NDArray[np.uint64], turn: int
    ) -> None:
        if not len(records):
            return
        first, end = _items(records)
        whole = spool.items(first, end) if end - first <= _READ_ITEMS else None
        rotated = records["position"] + np.uint64(turn)
        shard = np.searchsorted(inner, rotated, "right")
        edges = [*np.flatnonzero(np.diff(shard, prepend=-1)).tolist(), len(records)]
        for begin, stop in itertools.pairwise(edges):
            sequences = np.zeros(stop - begin, SEQUENCE)
            for name in RECORD.names or ():
                sequences[name] = records[name][begin:stop]
            sequences["part"] = part
            first_item, end_item = _items(sequences)
            at = self._scratch.bytes // ITEM.itemsize
            for item in range(first_item, end_item, _READ_ITEMS):
                last = min(item + _READ_ITEMS, end_item)
                self._scratch.append(
                    whole[item - first : last - first] if whole is not None else spool.items(item, last)
                )
            sequences["start"] = sequences["start"] - np.uint64(first_item) + np.uint64(at)
            self._places[shard[begin]].extend((self._scratch.append(sequences), len(sequences)))

    def sequences(self, shard: int) -> NDArray[Any]:
        """Return the sequences of a shard: `SEQUENCE[n]`.

        Their order does not depend on how the rows were cut into parts: by position but for the row's hash, then by
        digest, part, file, row and turn.
        """
        places = self._places[shard]
        sequences = np.zeros(sum(places[1::2]), SEQUENCE)
        view = sequences.view(np.uint8).data
        filled = 0
        for at, count in zip(places[::2], places[1::2], strict=True):
            size = count * SEQUENCE.itemsize
            self._scratch.read_into(view[filled : filled + size], at)
            filled += size
        place = sequences["position"] >> np.uint64(16)
        digest = sequences["digest"]
        origin = [sequences[name] for name in ("turn", "row", "file", "part")]
        return sequences[np.lexsort((*origin, digest[:, 1], digest[:, 0], place))]

    def tokens(self, start: NDArray[np.int64], length: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Read items from the given places, one piece after another: uint32[sum of lengths]."""
        offsets = (lengths_to_offsets(length) * ITEM.itemsize).tolist()
        buffer = np.empty(offsets[-1] // ITEM.itemsize, ITEM)
        view = buffer.view(np.uint8).data
        for at, begin, end in zip((start * ITEM.itemsize).tolist(), offsets, offsets[1:], strict=False):
            self._scratch.read_into(view[begin:end], at)
        return buffer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._scratch.close()


def _items(records: NDArray[Any]) -> tuple[int, int]:
    """Return the range of items that some records of a spool stand for."""
    return int(records["start"].min()), int((records["start"] + records["length"]).max())


def rows_of(sequences: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Number the rows that sequences come from; return the number for each, and the first sequence of each row."""
    same = np.ones(max(len(sequences) - 1, 0), bool)
    for name in ("part", "file", "row"):
        same &= sequences[name][1:] == sequences[name][:-1]
    begins = np.concatenate((np.ones(min(len(sequences), 1), bool), ~same))
    return np.cumsum(begins) - 1, np.flatnonzero(begins)


def duplicates(sequences: NDArray[Any], firsts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark the rows whose conversation an earlier row has, in the order of part, file and row: bool[rows].

    Args:
        firsts: int64[rows], the first sequence of each row.
    """
    rows = sequences[firsts]
    order = np.lexsort((rows["row"], rows["file"], rows["part"]))
    marked = np.zeros(len(rows), bool)
    marked[order] = repeated(*rows["digest"][order].T)
    return marked


def shifted(
    items: NDArray[np.uint32], ends: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Split items into tokens and the stored mask: entry j is the flag of token j + 1, 0 at the end of a sequence.

    Args:
        ends: int64[sequences], the last item of each.
    """
    mask = np.zeros(len(items), np.uint8)
    if len(items):
        mask[:-1] = items[1:] >> np.uint32(31)
        mask[ends] = 0
    return (items & TOKEN).astype(np.int32), mask
