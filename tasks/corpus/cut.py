"""Cut a bucket's selection into shards: a pure function of the inventory and of the selected rows.

Shards are cut at row-group edges, by source bytes and by selected rows, never across buckets and never by the
number of workers. A row group is cut inside only if it alone has more selected rows than a shard may have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tasks.corpus.inventory import SourceFile
from tasks.inputs.sizing import part_size

# The largest takes half a minute to read, and no more is lost when a run is killed.
_SMALLEST_SHARD_BYTES, _LARGEST_SHARD_BYTES = 64 << 20, 8 << 30
_SHARDS = 96


@dataclass(frozen=True)
class SourceRows:
    """Locate the part of one file that goes into a shard.

    Attributes:
        path, name, digest: the file.
        file: its index in the bucket.
        first_group, end_group: row groups to read.
        first_row: the row of the file at which `first_group` starts.
        start, stop: rows of the file that belong to the shard, within those groups.
        bitmap: eligibility bitmap of the file, or empty.
        seen: what the file looked like when it was hashed.
    """

    path: str
    name: str
    digest: str
    file: int
    first_group: int
    end_group: int
    first_row: int
    start: int
    stop: int
    bitmap: str
    seen: tuple[int, ...] = ()


@dataclass(frozen=True)
class ShardCut:
    """Hold the pieces of one shard, and how many selected rows they contain."""

    pieces: tuple[SourceRows, ...]
    rows: int


def shard_bytes_for(total_bytes: int) -> int:
    """Return how many uncompressed source bytes a shard may span.

    It is the smallest 64 MiB * 2**k such that 96 shards hold the corpus; at most 8 GiB.
    """
    return min(part_size(total_bytes, _SMALLEST_SHARD_BYTES, _SHARDS), _LARGEST_SHARD_BYTES)


# (file, start, stop) -> which of these rows are selected.
Kept = Callable[[int, int, int], NDArray[np.bool_]]


def cut_shards(
    files: Sequence[SourceFile],
    bitmaps: Sequence[str],
    selected: NDArray[np.int64],
    max_rows: int,
    shard_bytes: int,
    kept: Kept,
) -> list[ShardCut]:
    """Return the shards of a bucket, in row order; row groups without a selected row are left out.

    Args:
        selected: int64[row groups of all files], as `select_bucket` counts them.
        max_rows: most rows of one shard.
        shard_bytes: a shard is closed before it spans more uncompressed bytes than this.
        kept: called only for row groups that must be cut inside.
    """
    shards: list[ShardCut] = []
    pieces: list[SourceRows] = []
    rows = size = 0
    for piece, piece_rows, piece_bytes in _pieces(files, bitmaps, selected, max_rows, kept):
        if pieces and (rows + piece_rows > max_rows or size + piece_bytes > shard_bytes):
            shards.append(ShardCut(tuple(pieces), rows))
            pieces, rows, size = [], 0, 0
        if pieces and _continues(pieces[-1], piece):
            last = pieces.pop()
            piece = _joined(last, piece)
        pieces.append(piece)
        rows += piece_rows
        size += piece_bytes
    if pieces:
        shards.append(ShardCut(tuple(pieces), rows))
    return shards


def _pieces(
    files: Sequence[SourceFile],
    bitmaps: Sequence[str],
    selected: NDArray[np.int64],
    max_rows: int,
    kept: Kept,
) -> Iterator[tuple[SourceRows, int, int]]:
    """Yield every row group with selected rows, cut inside only if it has more than `max_rows` of them."""
    counts = iter(selected.tolist())
    for index, file in enumerate(files):
        first_row = 0
        for number, group in enumerate(file.groups):
            count = next(counts)
            for start, stop, rows in _cuts(index, first_row, group.rows, count, max_rows, kept):
                piece = SourceRows(
                    path=file.path,
                    name=file.name,
                    digest=file.digest,
                    file=index,
                    first_group=number,
                    end_group=number + 1,
                    first_row=first_row,
                    start=start,
                    stop=stop,
                    bitmap=bitmaps[index],
                    seen=file.seen,
                )
                yield piece, rows, group.bytes
            first_row += group.rows


def _cuts(
    file: int, first_row: int, num_rows: int, count: int, max_rows: int, kept: Kept
) -> Iterator[tuple[int, int, int]]:
    """Yield `(start, stop, selected rows)` of the parts of one row group."""
    end = first_row + num_rows
    if count == 0:
        return
    if count <= max_rows:
        yield first_row, end, count
        return
    chosen = first_row + np.flatnonzero(kept(file, first_row, end))
    edges = [first_row, *chosen[max_rows::max_rows].tolist(), end]
    for number, (start, stop) in enumerate(pairwise(edges)):
        yield start, stop, min(max_rows, count - number * max_rows)


def _continues(last: SourceRows, piece: SourceRows) -> bool:
    return last.file == piece.file and last.end_group == piece.first_group and last.stop == piece.start


def _joined(last: SourceRows, piece: SourceRows) -> SourceRows:
    return dataclasses.replace(last, end_group=piece.end_group, stop=piece.stop)
