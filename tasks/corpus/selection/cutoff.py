"""Find the exact `k` smallest of N hashed rows, in memory that does not grow with k or N.

Hashes are uniform, so the k-th smallest lies in a narrow band known from k and N alone. Map: each batch of
ids is hashed; rows below the band are counted, and only rows inside it are kept (60,000 of 200 M rows for
k = 10 M). Reduce: the k-th smallest of all is the (k - below)-th of the rows kept, ties by file, then row: the
*cutoff*. If it lies outside the band, the band is widened and the map repeated. A shard then hashes its own
rows again and keeps those at or below the cutoff.

Invariants:
    - the kept rows are exactly the k smallest by (hash, file, row), whatever the batches;
    - samples are nested: a larger k keeps all rows of a smaller one;
    - `KEEP_NONE` and `KEEP_ALL` are ordinary cutoffs: below, and above, every row.

`file` is the index of a file in its bucket's sorted list, `row` the row in that file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schemas.errors import WorkError
from tasks.corpus.selection.md5 import hash_heads, hash_rows, hash_some_rows

MAX_HASH = 2**64 - 1
DEFAULT_BATCH_IDS = 32_000_000

# Rows hashed at once: 1 MB of half hashes, a multiple of the 25,000 rows md5.py works on.
_PIECE_ROWS = 250_000
# A row hashed by hashlib costs 20 times one of a range.
_LOOP_FACTOR = 20

Hashes = NDArray[np.uint64]
Mask = NDArray[np.bool_]
# (file, start, stop) -> which of these rows may be sampled, bool[stop - start].
Eligible = Callable[[int, int, int], Mask]


class IdRange(NamedTuple):
    """Name the rows `start` to `stop` (exclusive) of one file."""

    file: int
    start: int
    stop: int


class Band(NamedTuple):
    """Bound a range of hashes, from `low` to `high`, both included."""

    low: int
    high: int


class Cutoff(NamedTuple):
    """Name the last row a sample keeps, in (hash, file, row) order."""

    hash: int
    file: int
    row: int


KEEP_NONE = Cutoff(0, -1, -1)
KEEP_ALL = Cutoff(MAX_HASH, 2**31 - 1, 2**63 - 1)


@dataclass(frozen=True, slots=True, eq=False)
class BandCount:
    """Hold what a batch contributes to a band: the number of rows `below` it, and the rows inside it.

    Attributes:
        hashes, files, rows: uint64[m], int32[m], int64[m].
    """

    below: int
    hashes: Hashes
    files: NDArray[np.int32]
    rows: NDArray[np.int64]

    @staticmethod
    def total(counts: Iterable[BandCount]) -> BandCount:
        """Return the sum over disjoint batches."""
        below = 0
        # A scan may sum millions of small files; nearly all of them have nothing inside the band.
        parts = [_EMPTY]
        for count in counts:
            below += count.below
            if len(count.hashes):
                parts.append(count)
        return BandCount(
            below,
            np.concatenate([part.hashes for part in parts]),
            np.concatenate([part.files for part in parts]),
            np.concatenate([part.rows for part in parts]),
        )


_EMPTY = BandCount(0, np.empty(0, np.uint64), np.empty(0, np.int32), np.empty(0, np.int64))


def split_batches(row_counts: Iterable[int], max_ids: int = DEFAULT_BATCH_IDS) -> list[list[IdRange]]:
    """Cut files, in order, into batches of exactly `max_ids` ids; only the last may have fewer.

    Args:
        row_counts: rows of each file.

    Raises:
        WorkError: `bad_batch`, if `max_ids` is below 1.

    >>> split_batches([3, 0, 5], max_ids=4)
    [[IdRange(file=0, start=0, stop=3), IdRange(file=2, start=0, stop=1)], [IdRange(file=2, start=1, stop=5)]]
    """
    if max_ids < 1:
        raise WorkError(f"a batch must have at least 1 id, not {max_ids}", code="bad_batch")
    batches: list[list[IdRange]] = []
    room = 0
    for file, count in enumerate(row_counts):
        start = 0
        while start < count:
            if room == 0:
                batches.append([])
                room = max_ids
            stop = min(count, start + room)
            batches[-1].append(IdRange(file, start, stop))
            room -= stop - start
            start = stop
    return batches


def band(count: int, total: int) -> Band:
    """Return a band that contains the `count`-th smallest of `total` uniform hashes, except in two runs in a billion.

    The rank of a hash is binomial: the band reaches 6 standard deviations to each side, and 24 ranks more for
    the skew of small counts. It is computed on integers, so it is the same on every machine.

    Raises:
        WorkError: `bad_count`, unless 0 < count < total (see `whole_cutoff`).

    >>> low, high = band(10_000_000, 200_000_000)
    >>> f"{low / 2**64:.6f} {high / 2**64:.6f}"
    '0.049907 0.050093'
    """
    if not 0 < count < total:
        raise WorkError(f"no band for {count} of {total} rows", code="bad_count")
    margin = isqrt(36 * count * (total - count) // total) + 24
    low = max(0, count - margin) * 2**64 // total
    high = min(total, count + margin) * 2**64 // total
    return Band(low, min(high, MAX_HASH))


def widen(narrow: Band) -> Band:
    """Return a band eight times as wide around the same middle, and at least a 500,000th of all hashes.

    Repeated at most 14 times, it is `Band(0, MAX_HASH)`.

    >>> widen(Band(2**60, 2**61)) == Band(0, 2**60 * 11 // 2)
    True
    """
    reach = max(4 * (narrow.high - narrow.low), 2**44)
    middle = (narrow.low + narrow.high) // 2
    return Band(max(0, middle - reach), min(MAX_HASH, middle + reach))


def whole_cutoff(count: int, total: int) -> Cutoff | None:
    """Return the cutoff if it needs no hashing, because no rows or all rows are kept; else `None`.

    >>> whole_cutoff(0, 9) == KEEP_NONE, whole_cutoff(9, 9) == KEEP_ALL, whole_cutoff(1, 9)
    (True, True, None)
    """
    if count <= 0:
        return KEEP_NONE
    return KEEP_ALL if count >= total else None


def count_band(
    hashes: Hashes, file: int, first_row: int, edges: Band, eligible: Mask | None = None
) -> BandCount:
    """Count consecutive rows of one file below a band and keep those inside it.

    Args:
        eligible: which rows may be sampled; all of them if `None`.

    >>> counted = count_band(np.array([5, 9, 2, 7], np.uint64), file=3, first_row=10, edges=Band(5, 8))
    >>> counted.below, counted.hashes.tolist(), counted.files.tolist(), counted.rows.tolist()
    (1, [5, 7], [3, 3], [10, 13])
    """
    low, width = np.uint64(edges.low), np.uint64(edges.high - edges.low)
    below = hashes < low
    # Unsigned subtraction: hashes below the band wrap round to the top, so one comparison tests both edges.
    inside = hashes - low <= width
    if eligible is not None:
        below &= eligible
        inside &= eligible
    at = np.flatnonzero(inside)
    return _one_file(int(np.count_nonzero(below)), hashes[at], file, first_row + at)


def _one_file(below: int, hashes: Hashes, file: int, rows: NDArray[np.int64]) -> BandCount:
    return BandCount(below, hashes, np.full(len(rows), file, np.int32), rows)


def scan(
    ranges: Iterable[IdRange],
    seed: int,
    bucket: str,
    paths: Sequence[str],
    edges: Band,
    eligible: Eligible | None = None,
) -> BandCount:
    """Run the map step: hash a batch of ids and count them against a band.

    Args:
        paths: of every file of the bucket, in the order that `IdRange.file` counts.
        eligible: called for each piece of at most 250,000 rows; all rows may be sampled if `None`.

    Raises:
        InputError: `path_encoding`: a path is not valid Unicode.
    """
    return BandCount.total(
        _scan_piece(piece, seed, bucket, paths[piece.file], edges, eligible) for piece in _pieces(ranges)
    )


def _scan_piece(
    piece: IdRange, seed: int, bucket: str, path: str, edges: Band, eligible: Eligible | None
) -> BandCount:
    """Decide by the upper half of the hash, and compute the lower half only for rows it cannot decide."""
    file, start, stop = piece
    may = eligible(file, start, stop) if eligible is not None else None
    # The upper half costs a tenth less, and is enough for all rows outside the band, which are nearly all.
    heads = hash_heads(seed, bucket, path, start, stop)
    low, width = np.uint32(edges.low >> 32), np.uint32((edges.high >> 32) - (edges.low >> 32))
    inside = heads - low <= width
    below = heads < low
    if may is not None:
        inside &= may
        below &= may
    at = np.flatnonzero(inside)
    # With many undecided rows, hashing the whole range again is faster than hashing each of them alone.
    if len(at) * _LOOP_FACTOR > stop - start:
        return count_band(hash_rows(seed, bucket, path, start, stop), file, start, edges, may)
    open_ = count_band(hash_some_rows(seed, bucket, path, start + at), file, 0, edges)
    return _one_file(int(np.count_nonzero(below)) + open_.below, open_.hashes, file, start + at[open_.rows])


def _pieces(ranges: Iterable[IdRange]) -> Iterator[IdRange]:
    for file, start, stop in ranges:
        while start < stop:
            end = min(stop, (start // _PIECE_ROWS + 1) * _PIECE_ROWS)
            yield IdRange(file, start, end)
            start = end


def cutoff(counts: Iterable[BandCount], count: int) -> Cutoff | None:
    """Run the reduce step: return the `count`-th smallest row, or `None` if it is outside the band.

    >>> cutoff([count_band(np.array([5, 9, 2, 5], np.uint64), 0, 0, Band(5, 8))], 3)
    Cutoff(hash=5, file=0, row=3)
    """
    merged = BandCount.total(counts)
    rank = count - merged.below
    if not 1 <= rank <= len(merged.hashes):
        return None
    last = np.lexsort((merged.rows, merged.files, merged.hashes))[rank - 1]
    return Cutoff(int(merged.hashes[last]), int(merged.files[last]), int(merged.rows[last]))


def find_cutoff(
    count: int,
    total: int,
    scan_all: Callable[[Band], Iterable[BandCount]],
    first_band: Band | None = None,
) -> Cutoff:
    """Map, reduce, and repeat with a wider band until the cutoff is inside it.

    Args:
        total: rows that may be sampled.
        scan_all: maps over all batches, in this process or in others.
        first_band: instead of `band(count, total)`.

    Raises:
        WorkError: `bad_total`: `scan_all` sees fewer than `count` rows.
    """
    whole = whole_cutoff(count, total)
    if whole is not None:
        return whole
    edges = first_band or band(count, total)
    while (found := cutoff(scan_all(edges), count)) is None:
        if edges == Band(0, MAX_HASH):
            raise WorkError(f"fewer than {count} of the {total} planned rows were hashed", code="bad_total")
        edges = widen(edges)
    return found


def keep_mask(hashes: Hashes, file: int, first_row: int, last: Cutoff) -> Mask:
    """Return which of consecutive rows of one file a sample keeps: those at or below its cutoff.

    Returns:
        bool[len(hashes)].

    >>> keep_mask(np.array([5, 9, 2, 5], np.uint64), 0, 0, Cutoff(5, 0, 2)).tolist()
    [True, False, True, False]
    """
    return _keep(hashes, file, first_row + np.arange(len(hashes)), last)


def _keep(hashes: Hashes, file: int, rows: NDArray[np.int64], last: Cutoff) -> Mask:
    limit = np.uint64(last.hash)
    kept: Mask = hashes < limit
    if file <= last.file:
        ties = np.flatnonzero(hashes == limit)
        kept[ties] = (file < last.file) | (rows[ties] <= last.row)
    return kept


def keep_rows(seed: int, bucket: str, path: str, ids: IdRange, last: Cutoff) -> Mask:
    """Hash rows and return which of them a sample keeps; a shard calls it for each of its ranges.

    Returns:
        bool[ids.stop - ids.start].

    Raises:
        InputError: `path_encoding`: a path is not valid Unicode.
    """
    if last in (KEEP_NONE, KEEP_ALL):
        return np.full(ids.stop - ids.start, last == KEEP_ALL, np.bool_)
    keep: Mask = np.empty(ids.stop - ids.start, np.bool_)
    limit = np.uint32(last.hash >> 32)
    for file, start, stop in _pieces([ids]):
        heads = hash_heads(seed, bucket, path, start, stop)
        part = keep[start - ids.start : stop - ids.start]
        np.less(heads, limit, out=part)
        # Only rows whose upper half equals the cutoff's need the lower half.
        rows = start + np.flatnonzero(heads == limit)
        part[rows - start] = _keep(hash_some_rows(seed, bucket, path, rows), file, rows, last)
    return keep
