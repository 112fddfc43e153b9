"""The sampler in pipelines of Grain's own transformations: a random map, a flat map; their draws; resuming."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plain_tokens import EPOCH, Read, read_context, round_trip
from records import measurements, random_rows, write_shards

from tasks.probes.loader import ProbeRowDataSource, ProbeRowSampler, shift_targets

NUM_ROWS = 120
FIELDS = {
    f"{side}{suffix}" for side in ("inputs", "targets") for suffix in ("", "_segmentation", "_position")
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ProbeRowDataSource:
    folder = tmp_path_factory.mktemp("shards")
    write_shards(folder, seed=0, num_rows=NUM_ROWS)
    return ProbeRowDataSource(folder)


@pytest.fixture
def grain() -> Any:
    import grain

    return grain


def read(crop: dict[str, Any]) -> list[Read]:
    """The measurements of a crop of one context, after a look at its layout."""
    assert crop.keys() == FIELDS
    size = int(np.count_nonzero(crop["inputs_segmentation"]))
    assert crop["inputs_segmentation"].tolist() == [1] * size + [0] * (1024 - size)
    assert crop["inputs_position"].tolist() == list(range(1024))
    assert not crop["inputs"][size:].any()
    for suffix in ("", "_segmentation", "_position"):
        assert crop[f"inputs{suffix}"].dtype == np.int32
        assert np.array_equal(crop[f"inputs{suffix}"], crop[f"targets{suffix}"])
    # A crop may cut its last measurement.
    tokens = crop["inputs"][:size].tolist()
    if size == 1024:
        tokens = tokens[: size - tokens[::-1].index(0) - 1]
    return list(read_context(tokens))


def assert_of(found: list[Read], row: dict[str, Any]) -> None:
    """All are measurements of the row, none more often than there."""
    known: Counter[tuple[str, int | None]] = Counter()
    for one in row["measurements"].to_pylist():
        exponent, mantissa = round_trip(max(one["rtt"], 0))
        known[str(ip_address(one["dst_addr"])), mantissa << exponent if one["rtt"] >= 0 else None] += 1
    times = {(one["event_time"] - EPOCH).total_seconds() // 1 for one in row["measurements"].to_pylist()}
    assert Counter((one.dst_addr, one.rtt_us) for one in found) <= known
    assert {one.src_addr for one in found} == {str(ip_address(row["src_addr"]))}
    assert {one.seconds for one in found} <= {None, *times}


def mode_of(found: list[Read]) -> str:
    timed = {one.seconds is not None for one in found}
    return {(True,): "full", (False,): "none"}.get(tuple(timed), "partial")


def long_ones(crops: Iterable[dict[str, Any]]) -> list[bytes]:
    """Crops of too many measurements to be equal by chance."""
    return [crop["inputs"].tobytes() for crop in crops if np.count_nonzero(crop["inputs_segmentation"]) > 100]


def test_random_map_gives_one_context_of_each_row(grain: Any, source: ProbeRowDataSource) -> None:
    dataset = grain.MapDataset.source(source).seed(0).random_map(ProbeRowSampler())
    rows = random_rows(0, NUM_ROWS)
    assert len(dataset) == NUM_ROWS
    for number, row in enumerate(rows):
        found = read(dataset[number])
        assert 1 <= len(found) <= 34
        assert_of(found, row)
    # Grain's seed decides, not the sampler's; each epoch draws anew.
    again = grain.MapDataset.source(source).seed(0).random_map(ProbeRowSampler(seed=7)).repeat(2)
    assert all(np.array_equal(dataset[i]["inputs"], again[i]["inputs"]) for i in range(NUM_ROWS))
    other = grain.MapDataset.source(source).seed(1).repeat(2).random_map(ProbeRowSampler())
    assert not any(np.array_equal(dataset[i]["inputs"], other[i]["inputs"]) for i in range(NUM_ROWS))
    assert not any(np.array_equal(other[NUM_ROWS + i]["inputs"], other[i]["inputs"]) for i in range(NUM_ROWS))


def test_random_map_draws_by_the_rules(grain: Any, source: ProbeRowDataSource) -> None:
    """Shares of the modes, and sizes of contexts."""
    number = int(np.argmax([item["n_measurements"] for item in source.__getitems__(range(NUM_ROWS))]))
    item = source[number]
    drawn = grain.MapDataset.source([item] * 4_000).seed(3).random_map(ProbeRowSampler())
    found = [read(drawn[i]) for i in range(len(drawn))]
    modes = Counter(mode_of(context) for context in found if len(context) > 5)
    total = sum(modes.values())
    for mode, share in (("full", 0.4), ("partial", 0.3), ("none", 0.3)):
        assert modes[mode] / total == pytest.approx(share, abs=0.035)
    # A window has floor(exp(U(0, ln n))) measurements.
    counts = np.array([len(context) for context in found])
    for below in (2, 5, 20):
        expected = math.log(below) / math.log(item["n_measurements"])
        assert (counts < below).mean() == pytest.approx(expected, abs=0.03)


def test_flat_map_gives_all_contexts_of_each_row(grain: Any, source: ProbeRowDataSource) -> None:
    rows = random_rows(0, NUM_ROWS)
    sampler = ProbeRowSampler(seed=2)
    dataset = grain.experimental.FlatMapIterDataset(
        grain.MapDataset.source(source).to_iter_dataset(), sampler
    )
    sizes = sampler.num_contexts(np.array([len(row["measurements"]) for row in rows]))
    owner = np.repeat(np.arange(NUM_ROWS), sizes).tolist()
    crops = list(dataset)
    assert len(crops) == len(owner) > NUM_ROWS
    for number, crop in zip(owner, crops, strict=True):
        assert_of(read(crop), rows[number])
    # Contexts of a row differ from one another, and from those of other seeds.
    texts = long_ones(crops)
    assert len({*texts}) == len(texts) > 100
    others = long_ones(crop for item in source for crop in ProbeRowSampler(seed=3).flat_map(item))
    assert not {*texts} & {*others}
    # Grain's flat map over a MapDataset reads a row for each of its contexts, and has the same in the end.
    by_number = grain.experimental.FlatMapMapDataset(grain.MapDataset.source(source), sampler)
    assert len(by_number) == 16 * NUM_ROWS
    assert [crop["inputs"].tobytes() for crop in by_number if crop] == [
        crop["inputs"].tobytes() for crop in crops
    ]


def test_flat_map_draws_anew_for_another_epoch(grain: Any, source: ProbeRowDataSource) -> None:
    def with_epoch(index: int, row: dict[str, Any]) -> dict[str, Any]:
        return row | {"epoch": index // NUM_ROWS}

    rows = grain.MapDataset.source(source).seed(0).shuffle().repeat(2)
    sampler = ProbeRowSampler()
    same = list(grain.experimental.FlatMapIterDataset(rows.to_iter_dataset(), sampler))
    marked = rows.map_with_index(with_epoch).to_iter_dataset()
    anew = list(grain.experimental.FlatMapIterDataset(marked, sampler))
    assert len(same) == len(anew)
    assert len({*long_ones(same)}) == len(long_ones(same)) // 2 > 50
    assert len({*long_ones(anew)}) == len(long_ones(anew)) > 100


def test_parts_of_a_probe_draw_apart(grain: Any) -> None:
    """Also parts with one size and one time; the place of a part in memory does not matter."""
    # Which measurements are drawn shows in the round trips.
    rows = [(0, "192.0.2.2", float(number + 1)) for number in range(200)]
    whole = measurements(rows)
    parts = [
        whole.slice(0, 100),
        whole.slice(100),
        measurements(rows[:99] + rows[:1]),
        measurements(rows[:100]),
    ]
    sampler = ProbeRowSampler(mode_weights=(1, 0, 0))
    drawn = []
    for part in parts:
        first = part["rtt"][0].as_py()
        crops = sampler.flat_map({"src_addr": "192.0.2.1", "measurements": part})
        assert len(crops) == 4
        drawn.append([[one.rtt_us // 1000 - int(first) for one in read(crop)] for crop in crops])
    assert drawn[0] != drawn[1] and drawn[0] != drawn[2] and drawn[0] == drawn[3]


@pytest.mark.parametrize("kind", ["random map", "flat map"])
def test_pipelines_resume_exactly(grain: Any, source: ProbeRowDataSource, kind: str) -> None:
    rows = grain.MapDataset.source(source).seed(0).shuffle()
    if kind == "random map":
        dataset = rows.random_map(ProbeRowSampler()).to_iter_dataset().map(shift_targets).batch(7)
    else:
        dataset = grain.experimental.FlatMapIterDataset(rows.to_iter_dataset(), ProbeRowSampler()).batch(16)
    grain.experimental.assert_equal_output_after_checkpoint(dataset)
    iterator = iter(dataset)
    states, batches = [], []
    for batch in iterator:
        states.append(json.dumps(iterator.get_state()))
        batches.append(batch)
    assert len(batches) > 10
    for place in (0, 4, len(batches) - 2):
        resumed = iter(dataset)
        resumed.set_state(json.loads(states[place]))
        following = next(resumed)
        assert all(np.array_equal(following[name], batches[place + 1][name]) for name in FIELDS)


def test_workers_give_the_same_contexts(grain: Any, source: ProbeRowDataSource) -> None:
    """A random map makes one of one, so workers change nothing before the batch."""
    dataset = grain.MapDataset.source(source).seed(0).random_map(ProbeRowSampler()).to_iter_dataset()
    expected = [crop["inputs"].tobytes() for crop in dataset]
    iterator = iter(dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=2)))
    found = [crop["inputs"].tobytes() for crop in iterator]
    iterator.close()
    assert found == expected


def test_grain_takes_the_sampler_for_a_transformation(grain: Any, source: ProbeRowDataSource) -> None:
    sampler = ProbeRowSampler()
    assert isinstance(sampler, grain.transforms.RandomMap)
    rows = grain.MapDataset.source(source).seed(0)
    [one, other] = rows.apply([sampler])[:1], rows.random_map(sampler)[:1]
    assert np.array_equal(one[0]["inputs"], other[0]["inputs"])
    loader = grain.DataLoader(
        data_source=source,
        sampler=grain.samplers.IndexSampler(len(source), num_epochs=1, seed=1),
        operations=[sampler, grain.transforms.Batch(8)],
    )
    assert next(iter(loader))["inputs"].shape == (8, 1024)


def test_the_sampler_may_be_made_before_grain_is_there() -> None:
    code = """
import sys
import pyarrow as pa
from tasks.probes.loader import ProbeRowSampler
sampler = ProbeRowSampler(crop_size=60)
assert "grain" not in sys.modules
import grain
columns = {
    "event_time": pa.array([0], pa.timestamp("us")),
    "dst_addr": ["192.0.2.2"],
    "rtt": pa.array([1.0], pa.float32()),
}
rows = [{"src_addr": "192.0.2.1", "measurements": pa.RecordBatch.from_pydict(columns)}]
print(grain.MapDataset.source(rows).seed(0).random_map(sampler)[0]["inputs"].shape)
"""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "(60,)"


def test_a_row_without_measurements() -> None:
    row = {"src_addr": "192.0.2.1", "measurements": measurements([])}
    crop = ProbeRowSampler().random_map(row, np.random.default_rng(0))
    assert not crop["inputs_segmentation"].any()
    assert ProbeRowSampler().flat_map(row) == []
