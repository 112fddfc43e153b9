"""Band selection against a full sort and a plain hashlib-and-heap loop."""

from __future__ import annotations

import hashlib
import heapq
import pickle
from collections.abc import Callable, Iterable
from itertools import pairwise
from math import exp, lgamma, log

import numpy as np
import pytest
from numpy.typing import NDArray

from schemas.errors import WorkError
from tasks.corpus.selection import cutoff as selection
from tasks.corpus.selection.md5 import hash_rows

SEED, BUCKET = 42, "4"
ROW_COUNTS = [700, 0, 1, 2500, 0, 3, 999]
PATHS = [f"sub/train-{i:05d}.parquet" for i in range(len(ROW_COUNTS))]
TOTAL = sum(ROW_COUNTS)
Rows = set[tuple[int, int]]
HashRows = Callable[[int, str, str, int, int], NDArray[np.uint64]]


def heap_sample(count: int, seed: int = SEED) -> Rows:
    """The rule as it is defined: one hashlib call a row and a heap of the `count` smallest."""
    heap: list[tuple[int, int, int]] = []
    for file, (path, rows) in enumerate(zip(PATHS, ROW_COUNTS, strict=True)):
        for row in range(rows):
            digest = hashlib.md5(f"{seed}_{BUCKET}#{path}#{row}".encode(), usedforsecurity=False).digest()
            item = (-int.from_bytes(digest[:8], "big"), -file, -row)
            if len(heap) < count:
                heapq.heappush(heap, item)
            elif heap and item > heap[0]:
                heapq.heapreplace(heap, item)
    return {(-file, -row) for _, file, row in heap}


def find(
    count: int, max_ids: int = 1000, seed: int = SEED, first_band: selection.Band | None = None
) -> selection.Cutoff:
    batches = selection.split_batches(ROW_COUNTS, max_ids)

    def scan_all(edges: selection.Band) -> Iterable[selection.BandCount]:
        return [selection.scan(batch, seed, BUCKET, PATHS, edges) for batch in batches]

    return selection.find_cutoff(count, TOTAL, scan_all, first_band)


def kept(last: selection.Cutoff, seed: int = SEED, hashes_of: HashRows = hash_rows) -> Rows:
    """The rows a cutoff keeps, checked to be the same from ready hashes and from ids."""
    rows: Rows = set()
    for file, (path, num_rows) in enumerate(zip(PATHS, ROW_COUNTS, strict=True)):
        mask = selection.keep_rows(seed, BUCKET, path, selection.IdRange(file, 0, num_rows), last)
        hashes = hashes_of(seed, BUCKET, path, 0, num_rows)
        assert np.array_equal(mask, selection.keep_mask(hashes, file, 0, last))
        half = num_rows // 2
        assert np.array_equal(mask[half:], selection.keep_mask(hashes[half:], file, half, last))
        assert np.array_equal(
            mask[half:],
            selection.keep_rows(seed, BUCKET, path, selection.IdRange(file, half, num_rows), last),
        )
        rows |= {(file, int(row)) for row in np.flatnonzero(mask)}
    return rows


@pytest.mark.parametrize("count", [0, 1, 2, 17, 1000, TOTAL - 1, TOTAL, TOTAL + 5])
@pytest.mark.parametrize("seed", [0, 42, 1234567])
def test_equal_to_the_heap(count: int, seed: int) -> None:
    assert kept(find(count, seed=seed), seed) == heap_sample(count, seed)


def test_none_and_all_need_no_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> NDArray[np.uint64]:
        raise AssertionError("hashed")

    assert (
        selection.whole_cutoff(0, 5)
        == selection.whole_cutoff(0, 0)
        == selection.whole_cutoff(-1, 5)
        == selection.KEEP_NONE
    )
    assert selection.whole_cutoff(5, 5) == selection.whole_cutoff(6, 5) == selection.KEEP_ALL
    for name in ("hash_rows", "hash_heads", "hash_some_rows"):
        monkeypatch.setattr(selection, name, never)
    assert find(0) == selection.KEEP_NONE
    assert find(TOTAL) == selection.KEEP_ALL
    assert not selection.keep_rows(
        SEED, BUCKET, PATHS[0], selection.IdRange(0, 3, 9), selection.KEEP_NONE
    ).any()
    assert (
        selection.keep_rows(SEED, BUCKET, PATHS[0], selection.IdRange(0, 3, 9), selection.KEEP_ALL).tolist()
        == [True] * 6
    )


def test_none_and_all_hold_at_the_ends_of_the_hashes() -> None:
    ends = np.array([0, selection.MAX_HASH], np.uint64)
    assert selection.keep_mask(ends, 0, 0, selection.KEEP_NONE).tolist() == [False, False]
    assert selection.keep_mask(ends, 10**6, 10**12, selection.KEEP_ALL).tolist() == [True, True]


@pytest.mark.parametrize("max_ids", [1, 7, 700, 701, 10**6])
def test_batches_do_not_matter(max_ids: int) -> None:
    assert find(321, max_ids) == find(321)


def test_samples_are_nested() -> None:
    samples = [kept(find(count)) for count in (5, 50, 51, 700, 4000)]
    assert [len(sample) for sample in samples] == [5, 50, 51, 700, 4000]
    assert all(smaller < larger for smaller, larger in pairwise(samples))


@pytest.mark.parametrize("point", [0, 1, 2**32, 2**63, selection.MAX_HASH])
def test_a_band_that_misses_is_widened(point: int) -> None:
    seen: list[selection.Band] = []
    batches = selection.split_batches(ROW_COUNTS)

    def scan_all(edges: selection.Band) -> Iterable[selection.BandCount]:
        seen.append(edges)
        return [selection.scan(batch, SEED, BUCKET, PATHS, edges) for batch in batches]

    assert selection.find_cutoff(900, TOTAL, scan_all, selection.Band(point, point)) == find(900)
    assert seen[0] == selection.Band(point, point)
    assert 1 < len(seen) <= 15
    for narrow, wide in pairwise(seen):
        assert wide.low <= narrow.low <= narrow.high <= wide.high
        assert wide.high - wide.low > narrow.high - narrow.low


@pytest.mark.parametrize("point", [0, 12345, 2**32, 2**63, selection.MAX_HASH])
def test_widening_ends_with_all_hashes(point: int) -> None:
    edges = selection.Band(point, point)
    for _ in range(14):
        edges = selection.widen(edges)
    assert edges == selection.Band(0, selection.MAX_HASH)


def test_a_wrong_total_is_an_error_and_not_an_endless_loop() -> None:
    with pytest.raises(WorkError) as caught:
        selection.find_cutoff(
            10, 100, lambda edges: [selection.count_band(np.arange(9, dtype=np.uint64), 0, 0, edges)]
        )
    assert caught.value.code == "bad_total"


def test_cutoff_outside_the_band_is_none() -> None:
    counted = selection.count_band(np.array([1, 5, 6, 9], np.uint64), 0, 0, selection.Band(5, 6))
    assert [selection.cutoff([counted], count) for count in (1, 4)] == [None, None]
    assert [selection.cutoff([counted], count) for count in (2, 3)] == [
        selection.Cutoff(5, 0, 1),
        selection.Cutoff(6, 0, 2),
    ]
    assert selection.cutoff([], 1) is None


def patch_coarse_hash(patch: pytest.MonkeyPatch, levels: int, base: int) -> HashRows:
    """Give selection a rule with only `levels` different hashes, so that nearly all rows tie."""

    def rows(seed: int, bucket: str, path: str, start: int, stop: int) -> NDArray[np.uint64]:
        return hash_rows(seed, bucket, path, start, stop) % np.uint64(levels) + np.uint64(base)

    def heads(seed: int, bucket: str, path: str, start: int, stop: int) -> NDArray[np.uint32]:
        return (rows(seed, bucket, path, start, stop) >> np.uint64(32)).astype(np.uint32)

    def some(seed: int, bucket: str, path: str, which: NDArray[np.int64]) -> NDArray[np.uint64]:
        return np.array([rows(seed, bucket, path, row, row + 1)[0] for row in which.tolist()], np.uint64)

    patch.setattr(selection, "hash_rows", rows)
    patch.setattr(selection, "hash_heads", heads)
    patch.setattr(selection, "hash_some_rows", some)
    return rows


@pytest.mark.parametrize("levels", [1, 2, 5])
@pytest.mark.parametrize("base", [0, 2**32 - 2, 2**63, selection.MAX_HASH - 5])
@pytest.mark.parametrize("loop_factor", [0, 20])
def test_ties_go_by_file_then_row(
    monkeypatch: pytest.MonkeyPatch, levels: int, base: int, loop_factor: int
) -> None:
    coarse = patch_coarse_hash(monkeypatch, levels, base)
    monkeypatch.setattr(selection, "_LOOP_FACTOR", loop_factor)
    order = sorted(
        (int(value), file, row)
        for file, rows in enumerate(ROW_COUNTS)
        for row, value in enumerate(coarse(SEED, BUCKET, PATHS[file], 0, rows))
    )
    for count in (1, 699, 701, 2000, TOTAL - 1):
        last = find(count, first_band=selection.Band(max(0, base - 3), min(selection.MAX_HASH, base + 7)))
        assert last == order[count - 1]
        assert kept(last, hashes_of=coarse) == {(file, row) for _, file, row in order[:count]}


def test_large_arrays_with_duplicates_against_a_full_sort() -> None:
    rng = np.random.default_rng(5)
    for total, levels in [(2000, 2**64 - 1), (2000, 300), (30_000, 5000)]:
        hashes = rng.integers(0, levels, total, dtype=np.uint64, endpoint=True)
        files = np.sort(rng.integers(0, 6, total))
        starts = np.searchsorted(files, np.arange(7))
        order = np.argsort(hashes, kind="stable")
        parts = [(file, hashes[starts[file] : starts[file + 1]]) for file in range(6)]
        for count in (1, total // 3, total - 1):

            def scan_all(
                edges: selection.Band, parts: list[tuple[int, NDArray[np.uint64]]] = parts
            ) -> Iterable[selection.BandCount]:
                return [selection.count_band(part, file, 0, edges) for file, part in parts]

            last = selection.find_cutoff(count, total, scan_all)
            mask = np.concatenate([selection.keep_mask(part, file, 0, last) for file, part in parts])
            assert np.array_equal(np.flatnonzero(mask), np.sort(order[:count]))


def test_ranges_larger_than_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_PIECE_ROWS", 300)
    assert kept(find(1234)) == heap_sample(1234)
    assert find(1234, max_ids=450, first_band=selection.Band(2**62, 2**62 + 2**58)) == find(1234)


def test_only_eligible_rows_count() -> None:
    allowed: list[NDArray[np.bool_]] = [np.arange(rows) % 3 != 1 for rows in ROW_COUNTS]
    order = sorted(
        (int(value), file, row)
        for file, rows in enumerate(ROW_COUNTS)
        for row, value in enumerate(hash_rows(SEED, BUCKET, PATHS[file], 0, rows))
        if allowed[file][row]
    )
    batches = selection.split_batches(ROW_COUNTS, 800)
    for factor in (0, 20, 10**9):  # The loop always, at times, never.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(selection, "_LOOP_FACTOR", factor)

            def scan_all(edges: selection.Band) -> Iterable[selection.BandCount]:
                def eligible(file: int, start: int, stop: int) -> NDArray[np.bool_]:
                    return allowed[file][start:stop]

                return [selection.scan(batch, SEED, BUCKET, PATHS, edges, eligible) for batch in batches]

            for count in (1, 500, len(order) - 1):
                assert selection.find_cutoff(count, len(order), scan_all) == order[count - 1]


@pytest.mark.parametrize("total", [2, 10, 1000, 200_000])
def test_the_band_misses_two_runs_in_a_billion(total: int) -> None:
    def log_tail(ranks: range, share: float) -> float:
        """log P(number of hashes below `share` is in `ranks`), binomial."""
        if share <= 0.0 or share >= 1.0:
            return 0.0 if (0 if share <= 0.0 else total) in ranks else -1e9
        terms = np.array(
            [
                lgamma(total + 1) - lgamma(i + 1) - lgamma(total - i + 1)
                + i * log(share) + (total - i) * log(1 - share)
                for i in ranks
            ]
        )  # fmt: skip
        return float(terms.max() + np.log(np.exp(terms - terms.max()).sum()))

    for count in sorted({1, 2, 3, 10, 40, 100, 500, total // 4, total // 2, total - 2, total - 1}):
        if not 0 < count < total:
            continue
        low, high = selection.band(count, total)
        misses = exp(log_tail(range(count, total + 1), low / 2**64))
        misses += exp(log_tail(range(count), (high + 1) / 2**64))
        assert misses < 2e-9, (count, misses)


def test_the_band_is_narrow() -> None:
    low, high = selection.band(10_000_000, 200_000_000)
    assert 0 < low < 10_000_000 / 200_000_000 * 2**64 < high
    assert (high - low) / 2**64 * 200_000_000 < 40_000
    assert selection.band(1, 10**12).low == 0
    assert selection.band(10**12 - 1, 10**12).high == selection.MAX_HASH


@pytest.mark.parametrize("count", [-1, 0, 9, 10])
def test_no_band_for_none_or_all(count: int) -> None:
    with pytest.raises(WorkError) as caught:
        selection.band(count, 9)
    assert caught.value.code == "bad_count"


def test_a_billion_ids_are_split_without_holding_them() -> None:
    batches = selection.split_batches([10**9, 3, 0, 7], 30_000_000)
    assert len(batches) == 34
    assert {sum(stop - start for _, start, stop in batch) for batch in batches[:-1]} == {30_000_000}
    assert batches[-1] == [
        selection.IdRange(0, 990_000_000, 10**9),
        selection.IdRange(1, 0, 3),
        selection.IdRange(3, 0, 7),
    ]


@pytest.mark.parametrize("max_ids", [1, 2, 3, 10, 100])
def test_batches_cover_every_row_once_and_in_order(max_ids: int) -> None:
    counts = [0, 5, 0, 0, 12, 1, 0]
    batches = selection.split_batches(counts, max_ids)
    assert all(0 < sum(stop - start for _, start, stop in batch) <= max_ids for batch in batches)
    ids = [(file, row) for batch in batches for file, start, stop in batch for row in range(start, stop)]
    assert ids == [(file, row) for file, rows in enumerate(counts) for row in range(rows)]


def test_no_batches() -> None:
    assert selection.split_batches([]) == selection.split_batches([0, 0]) == []
    with pytest.raises(WorkError):
        selection.split_batches([1], 0)


def test_a_count_crosses_processes() -> None:
    counted = selection.scan([selection.IdRange(0, 0, 700)], SEED, BUCKET, PATHS, selection.band(100, 700))
    again: selection.BandCount = pickle.loads(pickle.dumps(counted))  # noqa: S301
    assert again.below == counted.below
    for name, dtype in (("hashes", np.uint64), ("files", np.int32), ("rows", np.int64)):
        assert np.array_equal(getattr(again, name), getattr(counted, name))
        assert getattr(again, name).dtype == dtype
