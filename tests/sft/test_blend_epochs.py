"""Over the epochs of a blend every bin is read as often as every other of its data set, on any ranks and workers."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sft.fresh_process import in_fresh_process
from sft.shard_files import foreign_parquet

from schemas.errors import ConfigError
from tasks.sft.datasets import (
    BlendedDataset,
    PackedLoader,
    PackedParquetDataset,
    PackedSampler,
    SftDataset,
    create_sft_dataset,
)

SIZES = (40, 16, 32)
WEIGHTS = (1, 2, 0.5)
ALL = sum(SIZES)
# Each bin's first token is its number over all data sets; this many epochs show every bin of every data set.
EPOCHS = 6
FIRSTS = np.cumsum([0, *SIZES])
needs_torch = pytest.mark.usefixtures("torch")
# The test machine may have fewer cores than workers.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blend")
    for source, (first, size) in enumerate(zip(FIRSTS, SIZES, strict=False)):
        rows = [([int(first) + bin_number, 7, 9], [1, 1, 0], [0]) for bin_number in range(size)]
        foreign_parquet(folder / f"{source}.parquet", rows, row_group_size=5)
    return folder


def blend_of(folder: Path, **options: Any) -> BlendedDataset:
    parts = [PackedParquetDataset(path, window=7) for path in sorted(folder.iterdir())]
    return BlendedDataset(parts, WEIGHTS, window=16, **options)


def check(numbers: list[int], sizes: tuple[int, ...] = SIZES) -> None:
    """Every bin as often as every other of its data set, within one; data sets within one of their shares."""
    seen = Counter(numbers)
    for first, size, weight in zip(FIRSTS, sizes, WEIGHTS, strict=False):
        counts = [seen[number] for number in range(first, first + size)]
        assert max(counts) - min(counts) <= 1
        assert abs(sum(counts) - len(numbers) * weight / sum(WEIGHTS)) < 1


def test_the_union_of_three_ranks_over_epochs_is_every_bin(folder: Path) -> None:
    blend = blend_of(folder)
    samplers = [PackedSampler(blend, seed=5, rank=rank, world_size=3) for rank in range(3)]
    numbers: list[int] = []
    for epoch in range(EPOCHS):
        here: list[int] = []
        for sampler in samplers:
            sampler.set_epoch(epoch)
            here += [int(blend[sample]["input_ids"][0]) for sample in sampler if sample >= 0]
        assert len(here) == len(blend) == ALL
        numbers += here
        check(numbers)
    assert set(numbers) == set(range(ALL))
    # What it was like when every epoch drew what the first one did.
    assert len(set(numbers[:ALL])) < ALL


def test_what_is_left_out_differs_from_epoch_to_epoch(folder: Path) -> None:
    blend = blend_of(folder)
    seen: set[int] = set()
    for epoch, rank in itertools.product(range(2 * EPOCHS), range(3)):
        sampler = PackedSampler(blend, rank=rank, world_size=3, remainder="drop")
        sampler.set_epoch(epoch)
        seen |= {int(blend[sample]["input_ids"][0]) for sample in sampler}
    assert seen == set(range(ALL))


@pytest.mark.parametrize("seed", range(5))
def test_every_prefix_of_all_epochs_follows_the_weights(folder: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    parts = [PackedParquetDataset(path) for path in sorted(folder.iterdir())]
    weights = rng.lognormal(0, 1, 3)
    blend = BlendedDataset(parts, weights.tolist(), max_num_samples=int(rng.integers(1, 90)))
    sources = []
    for epoch in range(20):
        blend.set_epoch(epoch)
        sources += [blend.source(sample) for sample in range(len(blend))]
    taken = np.cumsum(np.array(sources)[:, None] == np.arange(3), axis=0)
    shares = np.outer(np.arange(1, len(sources) + 1), weights / weights.sum())
    assert np.abs(taken - shares).max() < 1


def test_an_epoch_is_the_same_from_wherever_it_is_reached(folder: Path) -> None:
    def of(blend: SftDataset, epoch: int) -> list[int]:
        blend.set_epoch(epoch)
        return [int(item["input_ids"][0]) for item in blend]

    forwards = blend_of(folder)
    epochs = [of(forwards, epoch) for epoch in range(4)]
    assert of(forwards, 1) == epochs[1]
    assert of(blend_of(folder), 3) == epochs[3]
    assert sorted(map(tuple, epochs)) == sorted(set(map(tuple, epochs)))
    check([number for epoch in epochs for number in epoch])
    with pytest.raises(ConfigError) as caught:
        forwards.set_epoch(-1)
    assert caught.value.where == "epoch"


def test_without_weights_every_epoch_is_every_bin_once(folder: Path) -> None:
    blend = BlendedDataset([PackedParquetDataset(path) for path in sorted(folder.iterdir())])
    orders = set()
    for epoch in range(4):
        blend.set_epoch(epoch)
        numbers = [int(item["input_ids"][0]) for item in blend]
        assert sorted(numbers) == list(range(ALL))
        orders.add(tuple(numbers))
    assert len(orders) == 4


def test_iteration_is_resumed_in_its_epoch(folder: Path) -> None:
    blend, resumed = blend_of(folder), blend_of(folder)
    blend.set_epoch(3)
    items = iter(blend)
    for _ in range(11):
        next(items)
    state = blend.state_dict()
    assert (state["epoch"], state["position"]) == (3, 11)
    resumed.load_state_dict(state)
    assert [item["input_ids"][0] for item in resumed] == [item["input_ids"][0] for item in items]
    # Saved before epochs were: the first one.
    del state["epoch"]
    resumed.load_state_dict(state)
    assert resumed.epoch == 0


def test_fewer_samples_than_bins_go_on_too(folder: Path) -> None:
    """One data set, 9 of its 40 bins an epoch: 40 epochs are 9 passes."""
    dataset = create_sft_dataset(folder / "0.parquet", max_num_samples=9)
    seen: Counter[int] = Counter()
    sampler = PackedSampler(dataset)
    for epoch in range(40):
        sampler.set_epoch(epoch)
        seen.update(int(dataset[sample]["input_ids"][0]) for sample in sampler)
        if epoch == 4:
            assert set(seen) == set(range(40))
        assert max(seen.values()) - min(seen[number] for number in range(40)) <= 1
    assert set(seen.values()) == {9}


def test_a_blend_of_cut_data_sets_shows_all_of_them(folder: Path) -> None:
    """A member's own `max_num_samples` is kept, and its own epochs go on as well."""
    parts = [PackedParquetDataset(path, max_num_samples=10) for path in sorted(folder.iterdir())]
    blend, seen = BlendedDataset(parts, WEIGHTS), set()
    assert len(blend) == 30
    for epoch in range(12):
        blend.set_epoch(epoch)
        seen |= {int(item["input_ids"][0]) for item in blend}
    assert seen == set(range(ALL))


def rank_batches(
    folder: Path, rank: int, state: dict[str, Any] | None, **workers: Any
) -> tuple[PackedLoader, Any]:
    blend = blend_of(folder)
    sampler = PackedSampler(blend, seed=2, rank=rank, world_size=3)
    loader = PackedLoader(blend, 4, sampler, **workers)
    if state is not None:
        loader.load_state_dict(state)
    return loader, itertools.chain.from_iterable(loader for _ in range(loader.epoch, EPOCHS))


def trained(batch: dict[str, Any]) -> list[int]:
    """The number of each row that is not a padding sample."""
    rows = zip(batch["tokens"].tolist(), batch["loss_mask"].sum(1).tolist(), strict=True)
    return [row[0] for row, loss in rows if loss]


@needs_torch
def test_three_ranks_with_a_resume_read_every_bin(folder: Path) -> None:
    numbers: list[int] = []
    for rank in range(3):
        loader, batches = rank_batches(folder, rank, None)
        whole = [batch["tokens"].tolist() for batch in batches]
        # Stop in the third epoch, at another batch on each rank.
        stop = 2 * len(loader) + 1 + rank
        loader, batches = rank_batches(folder, rank, None)
        parts = list(itertools.islice(batches, stop))
        assert loader.state_dict()["epoch"] == 2
        parts += rank_batches(folder, rank, loader.state_dict())[1]
        assert [batch["tokens"].tolist() for batch in parts] == whole
        numbers += [number for batch in parts for number in trained(batch)]
    assert len(numbers) == EPOCHS * ALL
    assert set(numbers) == set(range(ALL))
    check(numbers)


@needs_torch
def test_workers_that_live_on_hear_of_every_epoch(folder: Path) -> None:
    in_fresh_process(check_workers, folder)


def check_workers(folder: Path) -> None:
    epochs = [
        [batch["tokens"].tolist() for batch in rank_batches(folder, 1, None, **workers)[1]]
        for workers in ({}, {"num_workers": 2, "persistent_workers": True})
    ]
    assert epochs[0] == epochs[1]
