"""Cut inputs into parts: the unit of caching and of restart, and so a function of the inputs alone.

Neither the number of workers nor the total size decides, so the same file is cut alike on every machine, however much
data lies beside it, and a file that is added or changed leaves the parts of the others as they were:

* a file is cut into pieces by its own size: a 64th of it, rounded up to a power of two, at least 1 MiB and at most
  256 MiB;
* files of one piece, in order of their names, are grouped. A group ends with a file of which the hash of the name is
  a multiple of 64, before it would exceed 8 MiB, and where a larger file is next in order.

A piece of JSONL is a range of bytes; a line belongs to the piece in which it starts. A piece of Parquet is the row
groups that start in a range of the stored bytes, and one of compressed text the frames or members that start there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

SMALLEST_PIECE = 1 << 20
LARGEST_PIECE = 256 << 20
GROUP_BYTES = 8 << 20
_PIECES = 64
_NAMES_A_GROUP = 64

Item = TypeVar("Item")


class Cut(NamedTuple):
    """A piece of a file.

    Attributes:
        start, stop: bytes (JSONL, plain or compressed) or row groups (Parquet); `stop` is not part of it.
        first_row: number in the file of the first line that starts in it (JSONL), or of its first row (Parquet).
        rows: how many lines start in it, or how many rows it has.
        bytes: stored size; Parquet: the file's, shared by the groups' plain sizes.
        is_inside: whether it starts with the rest of a line that belongs to a piece before it (compressed text; in
            plain text the byte before says it).
    """

    start: int
    stop: int
    first_row: int
    rows: int
    bytes: int
    is_inside: bool = False


def piece_bytes(file_bytes: int) -> int:
    """Return the size of the pieces of a file.

    >>> [piece_bytes(mebibytes << 20) >> 20 for mebibytes in (0, 1, 64, 65, 1024, 16_384, 100_000)]
    [1, 1, 1, 2, 16, 256, 256]
    """
    size = SMALLEST_PIECE
    while size < LARGEST_PIECE and size * _PIECES < file_bytes:
        size *= 2
    return size


def is_small(file_bytes: int) -> bool:
    """Return whether a file of this size is one piece, whatever it contains."""
    return file_bytes <= SMALLEST_PIECE


def line_cuts(file_bytes: int, lines: Sequence[int]) -> tuple[Cut, ...]:
    """Return the pieces of a JSONL file in which lines start.

    Args:
        lines: how many lines start in each range of `piece_bytes`.

    >>> [(cut.start >> 20, cut.stop >> 20, cut.first_row) for cut in line_cuts(3 << 20, [5, 0, 2])]
    [(0, 1, 0), (2, 3, 5)]
    """
    piece = piece_bytes(file_bytes)
    cuts = []
    row = 0
    for start, count in zip(range(0, file_bytes, piece), lines, strict=True):
        stop = min(start + piece, file_bytes)
        if count:
            cuts.append(Cut(start, stop, row, count, stop - start))
        row += count
    return tuple(cuts)


def group_cuts(file_bytes: int, groups: Sequence[tuple[int, int]]) -> tuple[Cut, ...]:
    """Return the pieces of a Parquet file.

    Args:
        groups: rows and plain bytes of each row group.

    >>> [(cut.start, cut.stop, cut.first_row) for cut in group_cuts(3 << 20, [(7, 50), (7, 50), (7, 200)])]
    [(0, 2, 0), (2, 3, 14)]
    """
    piece = piece_bytes(file_bytes)
    total = sum(size for _, size in groups) or 1
    cuts: list[Cut] = []
    row = plain = place = 0
    last = -1
    for number, (rows, size) in enumerate(groups):
        start = file_bytes * plain // total
        plain += size
        stored = file_bytes * plain // total - start
        place = start // piece
        if place == last:
            before = cuts.pop()
            cuts.append(
                before._replace(stop=number + 1, rows=before.rows + rows, bytes=before.bytes + stored)
            )
        else:
            cuts.append(Cut(number, number + 1, row, rows, stored))
        last = place
        row += rows
    return tuple(cuts)


def grouped(
    files: Iterable[tuple[str, int, Sequence[Item]]], group_bytes: int = GROUP_BYTES
) -> list[tuple[Item, ...]]:
    """Return the parts of files: each piece of a larger file alone, the pieces of small files in groups.

    Args:
        files: name, size and pieces of each file, in order of their names.
        group_bytes: largest size of a group.
    """
    parts: list[tuple[Item, ...]] = []
    group: list[Item] = []
    held = 0

    def close() -> None:
        nonlocal held
        if group:
            parts.append(tuple(group))
        group.clear()
        held = 0

    for name, size, pieces in files:
        if not is_small(size):
            close()
            parts += [(piece,) for piece in pieces]
            continue
        if held + size > group_bytes:
            close()
        group += pieces
        held += size
        if ends_group(name):
            close()
    close()
    return parts


def ends_group(name: str) -> bool:
    """Return whether a group ends with the file of this name: one of 64 names does."""
    return hashlib.sha256(name.encode()).digest()[0] % _NAMES_A_GROUP == 0
