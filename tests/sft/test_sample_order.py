"""The order of bins: permutations that respect groups, equal shares, any place at once."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from schemas.errors import ConfigError
from tasks.sft.datasets.order import PADDING, EpochOrder, SampleMapping, Share


def groups(*sizes: int) -> np.ndarray:
    return np.cumsum([0, *sizes])


def random_groups(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    # Empty groups are legal in Parquet.
    return groups(*rng.integers(0, 9, rng.integers(1, 40)).tolist(), 1)


def epoch_of(order: EpochOrder, epoch: int = 0) -> list[int]:
    return order.places(epoch, 0, len(order)).tolist()


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("window", [1, 3, 16, 10_000])
def test_every_epoch_is_a_permutation(seed: int, window: int) -> None:
    order = EpochOrder(random_groups(seed), seed, window=window)
    for epoch in (0, 1, 7):
        assert sorted(epoch_of(order, epoch)) == list(range(order.num_bins))


@pytest.mark.parametrize("seed", range(20))
def test_places_are_found_without_walking_to_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    order = EpochOrder(random_groups(seed), seed, window=5, share=Share(seed % 3, 3))
    whole = epoch_of(order, 2)
    for _ in range(10):
        start, stop = sorted(rng.integers(0, len(order) + 1, 2).tolist())
        assert order.places(2, start, stop).tolist() == whole[start:stop]


def test_orders_differ_by_seed_and_epoch_and_by_nothing_else() -> None:
    sizes = groups(*[8] * 16)
    one = EpochOrder(sizes, 1, window=32)
    orders = {
        tuple(epoch_of(EpochOrder(sizes, seed, window=32), epoch)) for seed in (1, 2) for epoch in (0, 1)
    }
    assert len(orders) == 4
    assert epoch_of(pickle.loads(pickle.dumps(one)), 1) == epoch_of(one, 1)  # noqa: S301 - made here
    assert epoch_of(EpochOrder(sizes, 1, shuffle=False)) == list(range(128))


def test_no_more_groups_are_open_than_a_window_touches() -> None:
    """Each group is visited in one stretch of at most a window and two groups."""
    sizes = groups(*[10] * 50)
    order = np.array(epoch_of(EpochOrder(sizes, 0, window=40)))
    for group in range(50):
        places = np.flatnonzero(order // 10 == group)
        assert places[-1] - places[0] < 2 * 40
    windows = [set((order[low : low + 40] // 10).tolist()) for low in range(0, 500, 40)]
    assert max(map(len, windows)) <= 5
    # And within a window nothing is left of the order in the file.
    assert np.abs(np.diff(order[:40])).max() > 10


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
@pytest.mark.parametrize("shuffle", [True, False])
def test_ranks_share_out_every_epoch(world_size: int, shuffle: bool) -> None:
    sizes = groups(*[6] * 10, 5)
    for remainder in ("pad", "drop"):
        orders = [
            EpochOrder(sizes, 3, shuffle=shuffle, window=8, share=Share(rank, world_size, remainder))
            for rank in range(world_size)
        ]
        parts = [epoch_of(order, 4) for order in orders]
        assert len({len(part) for part in parts}) == 1
        real = [bin_number for part in parts for bin_number in part if bin_number != PADDING]
        assert len(set(real)) == len(real)
        if remainder == "pad":
            assert sorted(real) == list(range(65))
        else:
            assert len(real) == 65 // world_size * world_size


def test_more_ranks_than_bins() -> None:
    orders = [EpochOrder(groups(2), 0, share=Share(rank, 5)) for rank in range(5)]
    assert sorted(number for order in orders for number in epoch_of(order)) == [-1, -1, -1, 0, 1]


def test_ranks_read_groups_of_their_own() -> None:
    sizes = groups(*[10] * 40)
    parts = [
        set(np.array(epoch_of(EpochOrder(sizes, 0, window=50, share=Share(r, 4)))) // 10) for r in range(4)
    ]
    assert sum(map(len, parts)) <= 40 + 3


@pytest.mark.parametrize("seed", range(5))
def test_a_mapping_is_epochs_of_permutations(seed: int) -> None:
    order = EpochOrder(random_groups(seed), seed, window=7)
    size = order.num_bins
    mapping = SampleMapping(order)
    samples = [mapping[sample] for sample in range(3 * size)]
    epochs = [samples[low : low + size] for low in range(0, 3 * size, size)]
    assert all(sorted(epoch) == list(range(size)) for epoch in epochs)
    backwards = SampleMapping(order)
    assert [backwards[sample] for sample in reversed(range(3 * size))] == samples[::-1]


def test_an_empty_data_set_has_an_empty_order() -> None:
    assert epoch_of(EpochOrder(groups(), 0)) == []
    assert epoch_of(EpochOrder(groups(0, 0), 0)) == []


@pytest.mark.parametrize(
    ("share", "where"),
    [
        ((2, 2, "pad"), "rank"),
        ((-1, 2, "pad"), "rank"),
        ((0, 0, "pad"), "rank"),
        ((0, 1, "wrap"), "remainder"),
    ],
)
def test_shares_are_checked(share: tuple[int, int, str], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Share(*share)
    assert caught.value.where == where


def test_the_window_is_checked() -> None:
    with pytest.raises(ConfigError) as caught:
        EpochOrder(groups(3), 0, window=0)
    assert caught.value.where == "window"
