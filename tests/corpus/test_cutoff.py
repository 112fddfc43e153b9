"""Bands and cutoffs as tables: where a band ends, which rows it counts, which rows a cutoff keeps."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from numpy.typing import NDArray

from schemas.errors import WorkError
from tasks.corpus.selection.cutoff import (
    KEEP_ALL,
    KEEP_NONE,
    MAX_HASH,
    Band,
    BandCount,
    Cutoff,
    IdRange,
    band,
    count_band,
    cutoff,
    find_cutoff,
    keep_mask,
    keep_rows,
    scan,
    split_batches,
    whole_cutoff,
    widen,
)

ALL = Band(0, MAX_HASH)
TOP = 2**64


@pytest.mark.parametrize(
    ("count", "total", "low", "high"),
    [
        # 6 * sqrt(10,000 / 4) is 300 ranks, and 24 more.
        (5_000, 10_000, 4_676, 5_324),
        # 6 * sqrt(100 * 9,900 / 10,000) is 59.7: 59, and 24 more.
        (100, 10_000, 17, 183),
        (9_900, 10_000, 9_817, 9_983),
        # Ranks below none and above all do not exist.
        (1, 10_000, 0, 30),
        (29, 10_000, 0, 85),
        (81, 10_000, 4, 158),
        (1, 2, 0, 2),
        (9_999, 10_000, 9_970, 10_000),
    ],
)
def test_a_band_by_hand(count: int, total: int, low: int, high: int) -> None:
    assert band(count, total) == Band(low * TOP // total, min(high * TOP // total, MAX_HASH))


@pytest.mark.parametrize(("count", "total"), [(0, 5), (-1, 5), (5, 5), (6, 5), (1, 1), (0, 0)])
def test_none_and_all_have_no_band(count: int, total: int) -> None:
    with pytest.raises(WorkError) as caught:
        band(count, total)
    assert caught.value.code == "bad_count"
    assert whole_cutoff(count, total) == (KEEP_NONE if count <= 0 else KEEP_ALL)


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        # Four times its width to each side of its middle.
        (Band(2**60, 2**60 + 2**50), Band(2**60 + 2**49 - 2**52, 2**60 + 2**49 + 2**52)),
        # At least 2^44 to each side.
        (Band(2**60, 2**60), Band(2**60 - 2**44, 2**60 + 2**44)),
        (Band(2**60, 2**60 + 2**42), Band(2**60 + 2**41 - 2**44, 2**60 + 2**41 + 2**44)),
        (Band(2**60, 2**60 + 2**42 + 2), Band(2**60 + 2**41 + 1 - 2**44 - 8, 2**60 + 2**41 + 1 + 2**44 + 8)),
        (Band(0, 0), Band(0, 2**44)),
        (Band(MAX_HASH, MAX_HASH), Band(MAX_HASH - 2**44, MAX_HASH)),
        (Band(2**62, 2**63), ALL),
    ],
)
def test_a_wider_band(narrow: Band, wide: Band) -> None:
    assert widen(narrow) == wide


@pytest.mark.parametrize(
    ("rows", "max_ids", "batches"),
    [
        ([], 4, []),
        ([0, 0], 4, []),
        ([4], 4, [[(0, 0, 4)]]),
        ([5], 4, [[(0, 0, 4)], [(0, 4, 5)]]),
        ([3, 1, 1], 4, [[(0, 0, 3), (1, 0, 1)], [(2, 0, 1)]]),
        ([3, 0, 9], 4, [[(0, 0, 3), (2, 0, 1)], [(2, 1, 5)], [(2, 5, 9)]]),
        ([2, 2], 1, [[(0, 0, 1)], [(0, 1, 2)], [(1, 0, 1)], [(1, 1, 2)]]),
    ],
)
def test_batches(rows: list[int], max_ids: int, batches: list[list[tuple[int, int, int]]]) -> None:
    assert split_batches(iter(rows), max_ids) == batches


def test_a_batch_holds_32_million_ids_unless_told() -> None:
    assert split_batches([32_000_001]) == [[(0, 0, 32_000_000)], [(0, 32_000_000, 32_000_001)]]


@pytest.mark.parametrize("max_ids", [0, -1])
def test_a_batch_of_nothing_is_refused(max_ids: int) -> None:
    with pytest.raises(WorkError) as caught:
        split_batches([1], max_ids)
    assert caught.value.code == "bad_batch"


def told(count: BandCount) -> tuple[int, list[tuple[int, int, int]]]:
    assert (count.hashes.dtype, count.files.dtype, count.rows.dtype) == (np.uint64, np.int32, np.int64)
    return count.below, list(
        zip(count.hashes.tolist(), count.files.tolist(), count.rows.tolist(), strict=True)
    )


@pytest.mark.parametrize(
    ("edges", "below", "inside"),
    [
        (Band(5, 7), 2, [5, 6, 7]),
        (Band(6, 6), 3, [6]),
        (Band(0, 0), 0, [0]),
        (Band(0, 4), 0, [0, 4]),
        (Band(8, 9), 5, [8]),
        (Band(9, MAX_HASH - 1), 6, []),
        (Band(MAX_HASH, MAX_HASH), 6, [MAX_HASH]),
        (Band(9, MAX_HASH), 6, [MAX_HASH]),
        (ALL, 0, [8, 0, MAX_HASH, 4, 5, 7, 6]),
    ],
)
def test_what_a_band_holds(edges: Band, below: int, inside: list[int]) -> None:
    hashes = np.array([8, 0, MAX_HASH, 4, 5, 7, 6], np.uint64)
    rows = {value: 100 + row for row, value in enumerate(hashes.tolist())}
    found = told(count_band(hashes, 3, 100, edges))
    assert found[0] == below
    assert sorted(found[1]) == sorted((value, 3, rows[value]) for value in inside)


def test_only_rows_that_may_be_sampled_are_counted() -> None:
    hashes = np.array([1, 2, 5, 6, 9], np.uint64)
    may = np.array([True, False, True, False, True])
    assert told(count_band(hashes, 0, 0, Band(5, 8), may)) == (1, [(5, 0, 2)])


def test_batches_add_up_in_order() -> None:
    counts = [
        count_band(np.array([1, 5], np.uint64), 0, 0, Band(5, 8)),
        count_band(np.array([2], np.uint64), 1, 0, Band(5, 8)),
        count_band(np.array([5, 8, 3], np.uint64), 2, 7, Band(5, 8)),
    ]
    assert told(BandCount.total(iter(counts))) == (3, [(5, 0, 1), (5, 2, 7), (8, 2, 8)])
    assert told(BandCount.total([])) == (0, [])


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        # Three rows lie below the band, four in it; ties go by file, then row.
        (3, None),
        (4, Cutoff(5, 1, 0)),
        (5, Cutoff(5, 2, 1)),
        (6, Cutoff(5, 2, 4)),
        (7, Cutoff(8, 0, 9)),
        (8, None),
        (0, None),
    ],
)
def test_the_last_row_of_a_sample(count: int, expected: Cutoff | None) -> None:
    parts = [
        BandCount(1, np.array([5, 5], np.uint64), np.array([2, 2], np.int32), np.array([4, 1])),
        BandCount(2, np.array([8, 5], np.uint64), np.array([0, 1], np.int32), np.array([9, 0])),
    ]
    assert cutoff(parts, count) == expected


def test_which_rows_a_cutoff_keeps() -> None:
    hashes = np.array([4, 5, 5, 5, 6], np.uint64)
    assert keep_mask(hashes, 1, 10, Cutoff(5, 1, 12)).tolist() == [True, True, True, False, False]
    assert keep_mask(hashes, 1, 10, Cutoff(5, 1, 10)).tolist() == [True, False, False, False, False]
    # Rows with the last hash are kept in files before, and not in files behind.
    assert keep_mask(hashes, 0, 10, Cutoff(5, 1, 0)).tolist() == [True, True, True, True, False]
    assert keep_mask(hashes, 2, 10, Cutoff(5, 1, 99)).tolist() == [True, False, False, False, False]
    assert keep_mask(hashes[:0], 1, 0, Cutoff(5, 1, 12)).tolist() == []
    for last, kept in ((KEEP_NONE, False), (KEEP_ALL, True)):
        assert keep_mask(np.array([0, MAX_HASH], np.uint64), 2**31 - 1, 2**40, last).tolist() == [kept] * 2


SEED, BUCKET, PATHS = 7, "b", ["x", "y"]


def hashed(path: str, rows: range) -> list[int]:
    """The rule, row by row."""
    ids = (f"{SEED}_{BUCKET}#{path}#{row}".encode() for row in rows)
    return [int.from_bytes(hashlib.md5(text, usedforsecurity=False).digest()[:8], "big") for text in ids]


@pytest.mark.parametrize("share", [0.0, 0.003, 0.5, 1.0])
@pytest.mark.parametrize("only_even", [False, True])
def test_a_scan_counts_its_ranges(share: float, only_even: bool) -> None:
    """Few rows in the band are hashed one by one, many all at once; both count alike."""
    ranges = [IdRange(1, 10, 400), IdRange(0, 249_900, 250_200), IdRange(0, 5, 5)]
    edges = Band(2**62, 2**62 + int(share * 2**62))
    rows = [(1, row) for row in range(10, 400)] + [(0, row) for row in range(249_900, 250_200)]
    hashes = [*hashed("y", range(10, 400)), *hashed("x", range(249_900, 250_200))]
    asked = []

    def eligible(file: int, start: int, stop: int) -> NDArray[np.bool_]:
        asked.append((file, start, stop))
        return np.arange(start, stop) % 2 == 0

    count = scan(ranges, SEED, BUCKET, PATHS, edges, eligible if only_even else None)

    may = [(value, *row) for value, row in zip(hashes, rows, strict=True) if not only_even or row[1] % 2 == 0]
    below, inside = told(count)
    assert below == sum(value < edges.low for value, _, _ in may)
    assert inside == [row for row in may if edges.low <= row[0] <= edges.high]
    # Never more than a piece at once.
    assert asked == ([(1, 10, 400), (0, 249_900, 250_000), (0, 250_000, 250_200)] if only_even else [])


@pytest.mark.parametrize("start", [0, 3, 249_990])
@pytest.mark.parametrize("file", [0, 1, 2])
def test_rows_are_kept_by_their_hash(start: int, file: int) -> None:
    values = hashed("x", range(start, start + 40))
    order = sorted(values)
    for rank in (0, 20, 39):
        row = start + values.index(order[rank])
        last = Cutoff(order[rank], 1, row)
        mask = keep_rows(SEED, BUCKET, "x", IdRange(file, start, start + 40), last)
        assert mask.dtype == np.bool_
        assert mask.tolist() == [value < last.hash or (value == last.hash and file <= 1) for value in values]


def test_a_band_of_ones_own_is_tried_first() -> None:
    hashes = np.arange(100, dtype=np.uint64)
    seen = []

    def scan_all(edges: Band) -> list[BandCount]:
        seen.append(edges)
        return [count_band(hashes, 0, 0, edges)]

    assert find_cutoff(50, 100, scan_all, Band(40, 60)) == Cutoff(49, 0, 49)
    assert seen == [Band(40, 60)]
    seen.clear()
    assert find_cutoff(50, 100, scan_all, Band(60, 70)) == Cutoff(49, 0, 49)
    assert seen == [Band(60, 70), widen(Band(60, 70))]
    seen.clear()
    with pytest.raises(WorkError) as caught:
        find_cutoff(101, 200, scan_all, ALL)
    assert (caught.value.code, seen) == ("bad_total", [ALL])
    assert "fewer than 101 of the 200 planned rows" in caught.value.message
