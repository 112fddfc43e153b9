"""The data set of crops with worker processes: the batches of the run without them, whole, in order, resumed."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from records import write_shards

from schemas.errors import ConfigError
from tasks.probes.loader import ProbeRowSampler, build_probe_dataset, shift_targets

NUM_ROWS = 512
Batch = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shards")
    write_shards(path, seed=0, num_rows=NUM_ROWS)
    return path


def build(path: Path, **how: Any) -> Any:
    return build_probe_dataset(path, **{"batch_size": 64, "seed": 1, "group_rows": 32, **how})


def workers(number: int) -> Any:
    import grain

    return grain.MultiprocessingOptions(num_workers=number)


@contextmanager
def iterating(dataset: Any) -> Iterator[Any]:
    iterator = iter(dataset)
    try:
        yield iterator
    finally:
        iterator.close()


def batches_of(dataset: Any, limit: int | None = None) -> list[Batch]:
    with iterating(dataset) as iterator:
        return [copy_of(batch) for batch in itertools.islice(iterator, limit)]


def copy_of(batch: Batch) -> Batch:
    return {name: np.array(values) for name, values in batch.items()}


def assert_same(found: Iterable[Batch], expected: Iterable[Batch]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name in other:
            assert one[name].dtype == other[name].dtype
            assert np.array_equal(one[name], other[name]), name


@pytest.mark.parametrize("number", [1, 2, 3])
def test_no_worker_drops_a_remainder(folder: Path, number: int) -> None:
    """16 groups of 32 crops: 3 workers have 192, 160 and 160, of which whole batches of 64 are only 448."""
    sampler = ProbeRowSampler(max_contexts_per_row=1, seed=1)
    dataset = build(folder, pack=False, sampler=sampler)
    expected = batches_of(dataset)
    assert [len(batch["inputs"]) for batch in expected] == [64] * 8
    assert_same(batches_of(dataset.mp_prefetch(workers(number))), expected)


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize(
    "how",
    [
        {"batch_size": 7, "drop_remainder": False},
        {"batch_size": None, "crop_size": 256, "num_epochs": 2, "group_rows": 100},
        # Fewer groups than workers.
        {"batch_size": 16, "group_rows": NUM_ROWS, "shard": (1, 2), "drop_remainder": False},
    ],
)
def test_batches_are_those_without_workers(folder: Path, number: int, how: Batch) -> None:
    expected = batches_of(build(folder, **how))
    assert len(expected) > 5
    assert_same(batches_of(build(folder, **how).mp_prefetch(workers(number))), expected)


def test_epochs_without_end(folder: Path) -> None:
    dataset = build(folder, num_epochs=None)
    assert_same(batches_of(dataset.mp_prefetch(workers(2)), 12), batches_of(dataset, 12))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_resumes_from_any_point(folder: Path, number: int) -> None:
    """Any state, as JSON (so trainers store it), the first and the last included."""
    dataset = build(folder, batch_size=16)
    expected = batches_of(dataset)
    prefetched = dataset.mp_prefetch(workers(number))
    with iterating(prefetched) as iterator:
        states = [json.dumps(iterator.get_state())]
        for batch in iterator:
            assert_same([batch], expected[len(states) - 1 : len(states)])
            states.append(json.dumps(iterator.get_state()))
    assert len(states) == len(expected) + 1 > 12
    with iterating(prefetched) as resumed:
        for place in (len(expected), 3):
            resumed.set_state(json.loads(states[place]))
            assert_same(
                [copy_of(batch) for batch in itertools.islice(resumed, 2)], expected[place : place + 2]
            )
    with iterating(build(folder, batch_size=16).mp_prefetch(workers(number))) as fresh:
        fresh.set_state(json.loads(states[5]))
        assert_same([copy_of(batch) for batch in fresh], expected[5:])


def test_transformations_come_after_the_workers(folder: Path) -> None:
    dataset = build(folder)
    expected = [shift_targets(batch) for batch in batches_of(dataset)]
    assert_same(batches_of(dataset.mp_prefetch(workers(2)).map(shift_targets)), expected)
    # One worker has the whole data set, with what follows it.
    assert_same(batches_of(dataset.map(shift_targets).mp_prefetch(workers(1))), expected)
    assert_same(batches_of(dataset.map(shift_targets).mp_prefetch(workers(0))), expected)
    with pytest.raises(ConfigError, match=r"call it first: .*\.mp_prefetch\(\.\.\.\)\.map") as caught:
        batches_of(dataset.map(shift_targets).mp_prefetch(workers(2)))
    assert caught.value.where == "mp_prefetch"


def test_runs_of_groups_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="change the order") as caught:
        build(folder).mp_prefetch(workers(2), sequential_slice=True)
    assert caught.value.where == "mp_prefetch.sequential_slice"


def test_what_goes_to_a_worker_is_small(folder: Path) -> None:
    import cloudpickle

    sent = cloudpickle.dumps(build(folder).mp_prefetch(workers(2)))
    assert len(sent) < 20_000
    assert len(batches_of(pickle.loads(sent), 2)) == 2  # noqa: S301 - made here
