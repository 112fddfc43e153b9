"""Packing: literal tables, invariants over random inputs, edge cases, waste and mixing."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.packing.bins import Order, Packing, pack
from tasks.packing.histogram import lower_bound, place
from tasks.packing.next_fit import next_fit

ORDERS: tuple[Order, ...] = ("shuffled", "decreasing")
IntArray = npt.NDArray[np.integer]


def bins_of(packing: Packing) -> list[list[int]]:
    """Items of each bin."""
    return [items.tolist() for items in np.split(packing.bin_items, packing.bin_offsets[1:-1])]


def length_bins(lengths: IntArray, packing: Packing) -> list[list[int]]:
    """Lengths in each bin, sorted inside the bin and over the bins."""
    return sorted(sorted(np.asarray(lengths)[items].tolist()) for items in bins_of(packing))


def totals(lengths: IntArray, packing: Packing) -> npt.NDArray[np.int64]:
    return np.add.reduceat(lengths[packing.bin_items], packing.bin_offsets[:-1], dtype=np.int64)


def check(lengths: IntArray, size: int, packing: Packing) -> None:
    """The invariants every packing keeps."""
    offsets, items = packing.bin_offsets, packing.bin_items
    assert offsets.dtype == np.int64
    assert items.dtype == np.int32
    assert offsets[0] == 0
    assert offsets[-1] == len(items) == len(lengths)
    assert packing.num_bins == len(offsets) - 1
    assert np.array_equal(np.sort(items), np.arange(len(lengths)))
    if len(lengths):
        assert np.diff(offsets).min() > 0
        assert totals(lengths, packing).max() <= size
        assert packing.num_bins >= max(lower_bound(np.bincount(lengths), size), 1)


def lognormal(num: int, size: int, seed: int = 0, median: float = 350, sigma: float = 1.0) -> IntArray:
    values = np.random.default_rng(seed).lognormal(np.log(median), sigma, num)
    return np.clip(values, 1, size).astype(np.int64)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("lengths", "size", "expected"),
    [
        ([5], 5, [[5]]),
        ([0], 5, [[0]]),
        ([4, 3, 3, 2], 6, [[2, 4], [3, 3]]),
        ([5, 5, 5], 5, [[5], [5], [5]]),
        ([4, 4, 4], 6, [[4], [4], [4]]),
        ([1, 1, 1, 1], 4, [[1, 1, 1, 1]]),
        ([6, 5, 4, 3, 2, 1], 7, [[1, 6], [2, 5], [3, 4]]),
        ([1, 1, 0], 1, [[0, 1], [1]]),
    ],
)
def test_tables(lengths: list[int], size: int, expected: list[list[int]], seed: int, order: Order) -> None:
    assert length_bins(np.array(lengths), pack(lengths, size, order=order, seed=seed)) == expected


def test_decreasing_is_best_fit_decreasing() -> None:
    # Best-fit decreasing by hand: 7 opens a bin, so do 6 and 5; 4 goes to the 6, 3 to the 7, 2 to the 5.
    packing = pack([2, 3, 4, 5, 6, 7], 10, order="decreasing", seed=0)
    assert length_bins(np.array([2, 3, 4, 5, 6, 7]), packing) == [[2, 5], [3, 7], [4, 6]]
    packing = pack([0, 3, 0, 3], 3, order="decreasing", seed=0)
    assert length_bins(np.array([0, 3, 0, 3]), packing) == [[0, 3], [0, 3]]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("empty", [[], np.array([], np.int32), np.array([], np.float64)])
def test_empty_input_has_no_bins(empty: npt.ArrayLike, order: Order) -> None:
    packing = pack(empty, 8, order=order, seed=0)
    assert packing.num_bins == 0
    assert packing.bin_offsets.tolist() == [0]
    assert len(packing.bin_items) == 0
    check(np.zeros(0, np.int64), 8, packing)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", range(60))
def test_invariants(seed: int, order: Order) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.choice([1, 2, 3, 7, 100, 255, 256, 512, 513, 4096, 65_535, 65_536, 131_072]))
    num = int(rng.choice([1, 2, 3, 10, 100, 2_000, 20_000]))
    kind = seed % 6
    if kind == 0:
        lengths = rng.integers(0, size + 1, num)
    elif kind == 1:
        lengths = lognormal(num, size, seed, median=max(size / 12, 1))
    elif kind == 2:
        lengths = np.minimum(rng.pareto(0.6, num) * size / 200, size).astype(np.int64)
    elif kind == 3:
        lengths = rng.choice(rng.integers(0, size + 1, 2), num)
    elif kind == 4:
        lengths = np.clip(rng.normal(size / 2, size / 50, num), 0, size).astype(np.int64)
    else:
        lengths = rng.integers(0, min(size, 3) + 1, num)
    check(lengths, size, pack(lengths, size, order=order, seed=seed))


@settings(derandomize=True, max_examples=300, deadline=None)
@given(data=st.data(), order=st.sampled_from(ORDERS), seed=st.integers(0, 2**32))
def test_invariants_of_small_inputs(data: st.DataObject, order: Order, seed: int) -> None:
    size = data.draw(st.integers(1, 40))
    lengths = np.array(data.draw(st.lists(st.integers(0, size), max_size=30)), np.int64)
    check(lengths, size, pack(lengths, size, order=order, seed=seed))


@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    items=st.lists(st.integers(0, 9), max_size=12),
    gaps=st.lists(st.integers(0, 9), max_size=8),
)
def test_place_is_best_fit_decreasing(items: list[int], gaps: list[int]) -> None:
    """The histogram packs as a plain loop over items does that puts each in the fullest bin it fits."""
    size = 9
    open_bins = sorted(gaps)
    for length in sorted((length for length in items if length), reverse=True):
        fits = [room for room in open_bins if room >= length]
        if fits:
            open_bins.remove(min(fits))
        open_bins.append((min(fits) if fits else size) - length)
    item_counts = np.bincount(np.array(items, np.int64), minlength=1)
    placement = place(item_counts, size, np.bincount(np.array(gaps, np.int64)))
    rooms = np.zeros(placement.num_bins, np.int64)
    rooms[: len(gaps)] = sorted(gaps)
    rooms[len(gaps) :] = size
    item_bins = np.repeat(np.arange(placement.num_bins), placement.added())
    positions = placement.positions(np.append(0, np.cumsum(placement.added()))[:-1])
    assert sorted(positions.tolist()) == list(range(len(items)))
    np.subtract.at(rooms, item_bins[positions], sorted(items, reverse=True))
    only_zeros = bool(items) and not open_bins
    assert sorted(rooms.tolist()) == ([size] if only_zeros else sorted(open_bins))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("lengths", "size", "num_bins"),
    [
        (np.zeros(10_000, np.int64), 4096, 1),
        (np.full(5_000, 4096), 4096, 5_000),
        (np.full(5_000, 131_072), 131_072, 5_000),
        (np.ones(3_000, np.int64), 1, 3_000),
        (np.ones(300_000, np.int64), 131_072, 3),  # few bins of very many items
        (np.full(1_000, 2048), 4096, 500),
        (np.full(1_000, 2049), 4096, 1_000),
        (np.repeat([3000, 1096], 4_000), 4096, 4_000),  # two lengths, exact pairs
        (np.repeat([2700, 1500], 1_000), 4096, 1_500),  # two lengths that do not go together
        (np.append(np.full(999, 4096), 1), 4096, 1_000),
    ],
)
def test_exact_bin_counts(lengths: IntArray, size: int, num_bins: int, order: Order) -> None:
    packing = pack(lengths, size, order=order, seed=3)
    check(lengths, size, packing)
    assert packing.num_bins == num_bins


@pytest.mark.parametrize("order", ORDERS)
def test_items_of_length_zero_are_spread(order: Order) -> None:
    lengths = np.repeat([0, 5], [5_000, 1_000])
    packing = pack(lengths, 5, order=order, seed=1)
    assert packing.num_bins == 1_000
    assert np.diff(packing.bin_offsets).max() <= 100  # 5 zeros a bin; runs of them stay together


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.uint64])
def test_same_input_same_packing(dtype: type[np.integer], order: Order) -> None:
    lengths = lognormal(5_000, 4096)
    first = pack(lengths, 4096, order=order, seed=[7, 1])
    again = pack(lengths.astype(dtype), 4096, order=order, seed=np.random.default_rng([7, 1]))
    assert np.array_equal(first.bin_items, again.bin_items)
    assert np.array_equal(first.bin_offsets, again.bin_offsets)


@pytest.mark.parametrize("order", ORDERS)
def test_global_random_state_is_neither_read_nor_changed(order: Order) -> None:
    lengths = lognormal(1_000, 4096)
    np.random.seed(1)
    expected = np.random.random()
    np.random.seed(1)
    first = pack(lengths, 4096, order=order, seed=0)
    assert np.random.random() == expected
    assert np.array_equal(first.bin_items, pack(lengths, 4096, order=order, seed=0).bin_items)


@pytest.mark.parametrize("order", ORDERS)
def test_seeds_differ(order: Order) -> None:
    lengths = lognormal(2_000, 4096)
    packings = [pack(lengths, 4096, order=order, seed=seed) for seed in (0, 1, 2, [0, 1])]
    for one, other in combinations(packings, 2):
        assert not np.array_equal(one.bin_items, other.bin_items)


def test_lengths_are_left_alone() -> None:
    lengths = np.array([3, 1, 2], np.uint8)
    lengths.flags.writeable = False
    pack(lengths, 3, seed=0)
    assert lengths.tolist() == [3, 1, 2]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("num", "size"), [(200_000, 4096), (100_000, 8192), (100_000, 131_072)])
def test_waste(num: int, size: int, order: Order) -> None:
    lengths = lognormal(num, size)
    packing = pack(lengths, size, order=order, seed=0)
    check(lengths, size, packing)
    ideal = -(-int(lengths.sum()) // size)
    assert packing.num_bins <= ideal + ideal // 2_000


def test_waste_of_hard_lengths_is_that_of_decreasing() -> None:
    # A third of the size and a little more: two to a bin at best, 12% above ceil(total / size).
    lengths = np.random.default_rng(0).integers(1_366, 1_450, 30_000)
    shuffled = pack(lengths, 4096, seed=0)
    check(lengths, 4096, shuffled)
    assert shuffled.num_bins == pack(lengths, 4096, order="decreasing", seed=0).num_bins == 15_000


def test_shuffled_bins_mix_the_input_order() -> None:
    lengths = lognormal(100_000, 4096)
    packing = pack(lengths, 4096, seed=0)
    items = packing.bin_items.astype(np.float64)
    # Neighbours in the output are unrelated in the input: the correlation of 100k pairs is 0 +- 0.003.
    assert abs(np.corrcoef(items[:-1], items[1:])[0, 1]) < 0.015
    assert abs(np.corrcoef(items, np.arange(len(items)))[0, 1]) < 0.015


def test_shuffled_bins_mix_lengths() -> None:
    """Most bins are draws from the data; under `decreasing` a bin holds neighbouring lengths."""
    lengths = lognormal(100_000, 4096)

    def spread_inside_bins(order: Order) -> float:
        packing = pack(lengths, 4096, order=order, seed=0)
        logs = np.log(lengths[packing.bin_items])
        counts = np.diff(packing.bin_offsets)
        means = np.add.reduceat(logs, packing.bin_offsets[:-1]) / counts
        return float(np.mean((logs - np.repeat(means, counts)) ** 2))

    assert spread_inside_bins("shuffled") > 0.6  # of a variance of 1; 0.7 measured
    assert spread_inside_bins("decreasing") < 0.4


@pytest.mark.parametrize("order", ORDERS)
def test_order_of_and_inside_bins_is_random(order: Order) -> None:
    lengths = lognormal(100_000, 4096)
    packing = pack(lengths, 4096, order=order, seed=0)
    counts = np.diff(packing.bin_offsets)
    starts = packing.bin_offsets[:-1]
    packed = np.log(lengths[packing.bin_items])
    several = counts > 1
    first, last = packed[starts[several]], packed[packing.bin_offsets[1:][several] - 1]
    # Standard error of the mean difference over 14k bins: 0.012 at most.
    assert abs(float(np.mean(first - last))) < 0.06
    assert abs(np.corrcoef(counts, np.arange(len(counts)))[0, 1]) < 0.05


@pytest.mark.parametrize("order", ORDERS)
def test_order_inside_a_bin_is_uniform(order: Order) -> None:
    lengths = [1, 2, 3, 4]
    seen = [tuple(pack(lengths, 10, order=order, seed=seed).bin_items.tolist()) for seed in range(4_800)]
    _, counts = np.unique(seen, axis=0, return_counts=True)
    assert len(counts) == 24
    # Chi-square with 23 degrees of freedom: above 60 once in 40,000.
    assert float(((counts - 200) ** 2 / 200).sum()) < 60


def test_items_of_one_length_are_interchangeable() -> None:
    # Two of four items share a bin; each of the six pairs containing item 0 or not is as likely.
    partners = [next(b for b in bins_of(pack([3] * 4, 6, seed=s)) if 0 in b) for s in range(1_500)]
    counts = np.bincount([sum(pair) for pair in partners], minlength=4)[1:]
    assert counts.min() > 400  # 500 expected, standard deviation 18


@pytest.mark.parametrize(
    ("lengths", "size", "message"),
    [
        ([1, 2, 9], 8, r"lengths\[2\] is 9; allowed are 0..8: truncate, split or drop"),
        ([1, -2], 8, r"lengths\[1\] is -2; allowed are 0..8"),
        (np.array([2**63], np.uint64), 8, r"lengths\[0\] is 9223372036854775808"),
        ([1.0, 2.0], 8, r"lengths are float64\[2\]; expected a vector of integers"),
        ([True], 8, r"lengths are bool\[1\]"),
        ([[1, 2]], 8, r"lengths are int64\[1, 2\]"),
        (3, 8, r"lengths are int64\[\]"),
        ([1], 0, "size is 0; allowed are 1..16777216"),
        ([1], -1, "size is -1"),
        ([1], 2**24 + 1, "size is 16777217"),
    ],
)
def test_errors(lengths: npt.ArrayLike, size: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack(lengths, size, seed=0)


def test_unknown_order() -> None:
    with pytest.raises(ValueError, match="order is 'best'; allowed are 'shuffled' and 'decreasing'"):
        pack([1], 8, order="best", seed=0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lengths", "size", "bound"),
    [
        ([], 5, 0),
        ([0, 0], 5, 0),
        ([5], 5, 1),
        ([4, 4, 4], 6, 3),
        ([3, 3, 3], 6, 2),
        ([4, 4, 3], 6, 3),  # 3 cannot join a 4, though 11 / 6 is below 2
    ],
)
def test_lower_bound(lengths: list[int], size: int, bound: int) -> None:
    assert lower_bound(np.bincount(np.array(lengths, np.int64)), size) == bound


@pytest.mark.parametrize("seed", range(30))
def test_lower_bound_is_never_above_a_packing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 30))
    lengths = rng.integers(0, size + 1, int(rng.integers(1, 300)))
    bound = lower_bound(np.bincount(lengths), size)
    assert -(-int(lengths.sum()) // size) <= bound <= pack(lengths, size, seed=seed).num_bins


@pytest.mark.parametrize(
    ("num", "size"),
    [(0, 5), (1, 5), (1_000, 5), (50_000, 40), (50_000, 4_000), (20_000, 131_072)],
)
def test_next_fit_bins_are_runs_that_fit(num: int, size: int) -> None:
    lengths = np.random.default_rng(num).integers(0, min(size, 10) + 1, num)
    bounds = next_fit(lengths, size)
    assert bounds[0] == 0
    assert num * 0.9 <= bounds[-1] <= num
    assert (np.diff(bounds) > 0).all()
    if num:
        sums = np.add.reduceat(lengths[: bounds[-1]], bounds[:-1])
        assert sums.max() <= size
        # Next-fit opens a bin only for an item that does not fit; lane ends, one in eight bins, aside.
        overfull = sums[:-1] + lengths[bounds[1:-1]] > size
        assert overfull.mean() > 0.8 if len(overfull) else True
