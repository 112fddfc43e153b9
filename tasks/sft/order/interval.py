"""Gather what the spools of a data set have in an interval of positions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tasks.packing.arrays import lengths_to_offsets, repeated
from tasks.sft.order.spool import ITEM, RECORD, TOKEN, open_spools
from tasks.storage.scratch import Scratch

# What an interval knows of a sequence: its record, and which spool it came from.
SEQUENCE = np.dtype([*((name, RECORD[name]) for name in RECORD.names or ()), ("part", "<u4")])


class Interval:
    """The sequences of an interval, and their tokens in a file without a name.

    Args:
        intervals: of positions: one, or two where the rotated interval wraps.

    Attributes:
        sequences: `SEQUENCE[n]`, in an order that does not depend on how the rows were cut into parts: equal
            positions but for the row's hash, then by digest, part, row and turn.
    """

    def __init__(
        self, root: Path, stages: Sequence[str], intervals: Sequence[tuple[int, int]], folder: Path
    ) -> None:
        self._scratch = Scratch(folder)
        found = []
        with open_spools(root, stages) as spools:
            for part, spool in enumerate(spools):
                for low, high in intervals:
                    records = spool.records(low, high)
                    if not len(records):
                        continue
                    first, items = spool.items(records)
                    sequences = np.zeros(len(records), SEQUENCE)
                    for name in RECORD.names or ():
                        sequences[name] = records[name]
                    begins = self._scratch.append(items) // ITEM.itemsize
                    sequences["start"] = records["start"] - np.uint64(first) + np.uint64(begins)
                    sequences["part"] = part
                    found.append(sequences)
        sequences = np.concatenate(found) if found else np.zeros(0, SEQUENCE)
        place = sequences["position"] >> np.uint64(16)
        digest = sequences["digest"]
        origin = [sequences[name] for name in ("turn", "row", "file", "part")]
        order = np.lexsort((*origin, digest[:, 1], digest[:, 0], place))
        self.sequences: NDArray[Any] = sequences[order]

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
