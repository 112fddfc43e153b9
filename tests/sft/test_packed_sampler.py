"""Samplers and loaders: torch workers by fork and by spawn, every sample once, and exact resume."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sft.fresh_process import in_fresh_process
from sft.shard_files import foreign_memmap, foreign_parquet, random_rows

from schemas.errors import ConfigError, MissingExtraError
from tasks.sft.datasets import PackedLoader, PackedSampler, SftDataset, create_sft_dataset

NUM_ROWS = 203
WORKERS = {"num_workers": 4, "persistent_workers": True}
# The test machine may have fewer cores than workers.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
needs_torch = pytest.mark.usefixtures("torch")


def first_tokens(batch: dict[str, Any]) -> list[int]:
    """Each row's first token, which is the number of its bin; -1 for a padding sample."""
    trained = batch["loss_mask"].sum(1)
    return [int(row[0]) if any_loss else -1 for row, any_loss in zip(batch["tokens"], trained, strict=True)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> SftDataset:
    """Bins that begin with their number and train something, in two shards."""
    rows = [
        ([i, *ids, 1], [1] * (len(ids) + 2), [0]) for i, (ids, _, _) in enumerate(random_rows(NUM_ROWS, 9))
    ]
    folder = tmp_path_factory.mktemp("loader")
    foreign_parquet(folder / "a.parquet", rows[:120], row_group_size=16)
    foreign_parquet(folder / "b.parquet", rows[120:], row_group_size=16)
    return create_sft_dataset(folder, window=40)


class TestSampler:
    def test_resume_without_workers(self, dataset: SftDataset) -> None:
        sampler = PackedSampler(dataset, seed=3)
        sampler.set_epoch(2)
        numbers = iter(sampler)
        list(itertools.islice(numbers, 77))
        state = sampler.state_dict()
        assert state["position"] == 77 and state["epoch"] == 2
        resumed = PackedSampler(dataset, seed=3)
        resumed.load_state_dict(state)
        # What a training loop does at the top of every epoch must not undo it.
        resumed.set_epoch(2)
        assert list(resumed) == list(numbers)
        assert len(list(resumed)) == NUM_ROWS

    def test_the_loop_may_say_what_it_consumed(self, dataset: SftDataset) -> None:
        sampler = PackedSampler(dataset)
        whole = list(sampler)
        numbers = iter(sampler)
        list(itertools.islice(numbers, 50))  # a loader's workers fetch ahead
        resumed = PackedSampler(dataset)
        resumed.load_state_dict(sampler.state_dict(consumed=24))
        assert list(resumed) == whole[24:]

    @pytest.mark.parametrize(
        "change",
        [
            {"seed": 4},
            {"window": 41},
            {"shuffle": False},
            {"rank": 1, "world_size": 2},
            {"remainder": "drop"},
        ],
    )
    def test_a_state_of_another_order_is_refused(self, dataset: SftDataset, change: dict[str, Any]) -> None:
        state = PackedSampler(dataset, seed=3).state_dict()
        with pytest.raises(ConfigError) as caught:
            PackedSampler(dataset, **{"seed": 3, **change}).load_state_dict(state)
        assert caught.value.code == "other_state"
        assert str(state[next(iter(change))]) in caught.value.message

    @pytest.mark.parametrize("state", [{}, {"epoch": 0, "position": 9999}, {"epoch": "1", "position": 0}])
    def test_what_is_no_state_is_refused(self, dataset: SftDataset, state: dict[str, Any]) -> None:
        with pytest.raises(ConfigError):
            PackedSampler(dataset).load_state_dict(state)


@needs_torch
def test_the_sampler_in_a_plain_loader(dataset: SftDataset) -> None:
    in_fresh_process(check_plain_loader, dataset)


def check_plain_loader(dataset: SftDataset) -> None:
    import torch

    sampler = PackedSampler(dataset, rank=1, world_size=2)
    loader: Any = torch.utils.data.DataLoader(
        dataset,  # type: ignore[arg-type]
        8,
        sampler=sampler,
        collate_fn=dataset.collate_fn,
        num_workers=2,
    )
    numbers = [number for batch in loader for number in first_tokens(batch)]
    assert numbers == list(PackedSampler(dataset, rank=1, world_size=2))


@needs_torch
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_four_persistent_workers(dataset: SftDataset, method: str) -> None:
    in_fresh_process(check_four_workers, dataset, method)


def check_four_workers(dataset: SftDataset, method: str) -> None:
    """Every sample once an epoch, for epochs; resumed in mid-epoch, here and with other workers, exactly."""

    def sampler() -> PackedSampler:
        return PackedSampler(dataset, seed=1)

    loader = PackedLoader(dataset, 5, sampler(), **WORKERS, multiprocessing_context=method)
    epochs = [[first_tokens(batch) for batch in loader] for _ in range(2)]
    for epoch in epochs:
        assert sorted(itertools.chain(*epoch)) == list(range(NUM_ROWS))
        assert list(map(len, epoch)) == [5] * 40 + [3]
    assert epochs[0] != epochs[1]
    assert loader.epoch == 2

    third = iter(loader)
    begun = [first_tokens(next(third)) for _ in range(13)]
    state = loader.state_dict()
    rest = [first_tokens(batch) for batch in third]
    assert sorted(itertools.chain(*begun, *rest)) == list(range(NUM_ROWS))
    fourth = [first_tokens(batch) for batch in loader]

    alone = PackedLoader(dataset, 5, sampler())
    for resumed in (loader, alone):
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert [first_tokens(batch) for batch in resumed] == rest
        assert [first_tokens(batch) for batch in resumed] == fourth


@needs_torch
def test_a_state_taken_at_the_end_of_an_epoch(dataset: SftDataset) -> None:
    """As `for epoch in range(loader.epoch, epochs)` goes on from it: nothing is left, then the next epoch."""
    loader = PackedLoader(dataset, 5)
    states = [loader.state_dict() for _ in loader]
    resumed = PackedLoader(dataset, 5)
    resumed.load_state_dict(states[-1])
    assert resumed.epoch == 0 and list(resumed) == [] and resumed.epoch == 1
    assert [first_tokens(batch) for batch in resumed] == [first_tokens(batch) for batch in loader]


@needs_torch
def test_an_iteration_that_is_left_goes_on_where_it_was(dataset: SftDataset) -> None:
    loader = PackedLoader(dataset, 5)
    seen: Counter[int] = Counter()
    while loader.epoch == 0:
        for batch in itertools.islice(loader, 9):
            seen.update(first_tokens(batch))
            if loader.epoch:
                break
    assert sorted(seen.elements()) == list(range(NUM_ROWS))


@needs_torch
@pytest.mark.parametrize("remainder", ["pad", "drop"])
def test_ranks_have_equally_many_batches(dataset: SftDataset, remainder: str) -> None:
    samplers = [PackedSampler(dataset, rank=rank, world_size=4, remainder=remainder) for rank in range(4)]
    loaders = [PackedLoader(dataset, 4, sampler) for sampler in samplers]
    batches = [[first_tokens(batch) for batch in loader] for loader in loaders]
    assert len({len(part) for part in batches}) == 1 == len({len(loader) for loader in loaders})
    numbers = [number for part in batches for batch in part for number in batch]
    real = [number for number in numbers if number >= 0]
    assert len(set(real)) == len(real) == (NUM_ROWS if remainder == "pad" else 200)
    assert numbers.count(-1) == (1 if remainder == "pad" else 0)


@needs_torch
def test_batches_of_another_size_after_a_resume(dataset: SftDataset) -> None:
    loader = PackedLoader(dataset, 5, drop_last=True)
    batches: Iterator[Any] = iter(loader)
    begun = [number for _ in range(3) for number in first_tokens(next(batches))]
    resumed = PackedLoader(dataset, 7)
    resumed.load_state_dict(loader.state_dict())
    rest = [number for batch in resumed for number in first_tokens(batch)]
    assert sorted(begun + rest) == list(range(NUM_ROWS))


@needs_torch
def test_memmap_in_workers(tmp_path: Path) -> None:
    in_fresh_process(check_memmap_in_workers, tmp_path)


def check_memmap_in_workers(tmp_path: Path) -> None:
    rows = [([i, 7, 8], [1, 1, 0], [0]) for i in range(100)]
    dataset = create_sft_dataset(foreign_memmap(tmp_path / "x", rows))
    assert dataset[0]["input_ids"][0] == 0  # opened before the workers are made
    for method in ("fork", "forkserver"):
        loader = PackedLoader(dataset, 8, num_workers=1, multiprocessing_context=method)
        assert sorted(number for batch in loader for number in first_tokens(batch)) == list(range(100))


def test_without_torch(dataset: SftDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.data", None)
    with pytest.raises(MissingExtraError):
        PackedLoader(dataset, 4)
