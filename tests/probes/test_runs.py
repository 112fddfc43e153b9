"""Sorted runs give back what came in, however they are merged, and a probe's measurements in the order of time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measurements import build_serially, config_of, random_table, raw_records
from support import published_digests

from flows.build_probe_rows import mill
from schemas.errors import IntegrityError
from tasks.inputs.parts import grouped
from tasks.probes import inventory, stages
from tasks.probes.identity import identify
from tasks.probes.merge import MergeJob, merge_runs
from tasks.probes.runs import layout, write
from tasks.probes.runs.in_time import Stretch, cut_at, merge_by_time, without_repeated
from tasks.probes.runs.layout import ITEM, RECORD
from tasks.probes.runs.place import RunRef
from tasks.probes.runs.read import Measurements, RunReader
from tasks.probes.runs.write import Batch, RunWriter
from tasks.spool.layout import RING

STAGE = "0" * 16
ADDRESSES = [f"198.51.100.{number}" for number in range(6)] + ["2001:db8::1", "2001:db8::22"]

# A measurement: time, destination, round trip time. A batch: measurements by the hash of their probe.
Row = tuple[int, str, float]
rows_of_one = st.lists(
    st.tuples(st.integers(0, 9), st.sampled_from(ADDRESSES), st.sampled_from([-1.0, 0.5, 7.0])),
    min_size=1,
    max_size=6,
)
hashes = st.sampled_from([0, 1, 2**40, 2**63, 2**64 - 1])
batches = st.lists(st.dictionaries(hashes, rows_of_one, min_size=1), min_size=1, max_size=6)


def batch_of(probes: dict[int, list[Row]]) -> Batch:
    """A batch whose dictionary has addresses that it does not need, in an order of its own."""
    texts = list(reversed(ADDRESSES))
    records = np.zeros(len(probes), RECORD)
    items: list[tuple[int, int, float]] = []
    for record, (position, rows) in zip(records, sorted(probes.items()), strict=True):
        ordered = sorted(rows, key=lambda row: row[0])
        record["position"], record["length"], record["src"] = position, len(rows), f"p{position}".encode()
        record["dst_bytes"] = sum(len(dst) for _, dst, _ in rows)
        items += [(time, texts.index(dst), rtt) for time, dst, rtt in ordered]
    return Batch(records, np.array(items, ITEM), pa.array(texts))


def write_run(root: Path, number: int, batches: Sequence[dict[int, list[Row]]]) -> RunRef:
    ref = RunRef(STAGE, number)
    with RunWriter(ref.path(root)) as writer:
        for probes in batches:
            writer.append(batch_of(probes))
        writer.finish()
    return ref


def rows_in(some: Measurements) -> list[Row]:
    texts = some.texts.to_pylist()
    return [
        (time, texts[code], rtt)
        for time, code, rtt in zip(some.times.tolist(), some.codes.tolist(), some.rtts.tolist(), strict=True)
    ]


def contents(run: RunReader, low: int = 0, high: int = RING) -> list[tuple[int, list[Row]]]:
    """The records of an interval: hash of the probe, and its measurements."""
    records = run.records(low, high)
    assert [bytes(src) for src in records["src"]] == [
        f"p{position}".encode() for position in records["position"]
    ]
    found = []
    for record in records:
        some = run.read(int(record["start"]), int(record["start"] + record["length"]))
        assert some.dst_lengths().sum() == record["dst_bytes"]
        found.append((int(record["position"]), rows_in(some)))
    return found


def expected(
    batches: Sequence[dict[int, list[Row]]], low: int = 0, high: int = RING
) -> list[tuple[int, list[Row]]]:
    pairs = [
        (position, sorted(rows, key=lambda row: row[0]))
        for probes in batches
        for position, rows in probes.items()
    ]
    return [pair for pair in sorted(pairs, key=lambda pair: pair[0]) if low <= pair[0] < high]


@settings(max_examples=60, deadline=None)
@given(batches, st.integers(1, 9), st.integers(0, 2**64), st.integers(0, 2**64))
def test_an_interval_of_a_run_gives_what_came_in(
    tmp_path_factory: pytest.TempPathFactory, batches: Any, block: int, low: int, high: int
) -> None:
    root = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "BLOCK_ITEMS", block)
        run = RunReader(root, write_run(root, 0, batches))
    assert contents(run) == expected(batches)
    assert contents(run, low, high) == expected(batches, low, high)
    everything = run.read(0, run.spool.num_items)
    assert rows_in(everything) == [row for _, rows in expected(batches) for row in rows]


@settings(max_examples=40, deadline=None)
@given(st.lists(batches, min_size=1, max_size=4))
def test_a_merged_run_is_the_run_of_all_batches(
    tmp_path_factory: pytest.TempPathFactory, groups: list[list[dict[int, list[Row]]]]
) -> None:
    root = tmp_path_factory.mktemp("run")
    refs = tuple(write_run(root, number, group) for number, group in enumerate(groups))
    job = MergeJob(output_dir=str(root), stage="f" * 16, runs=refs)
    receipt = merge_runs(job)
    merged = RunReader(root, RunRef(job.stage, 0))
    together = [probes for group in groups for probes in group]
    assert contents(merged) == expected(together)
    [size] = receipt.statistics["runs"]
    assert size["rows"] == merged.spool.num_items == sum(len(rows) for _, rows in expected(together))
    assert size["records"] == merged.spool.num_records
    before = (root / receipt.files[0].path).read_bytes()
    assert merge_runs(job) == receipt and (root / receipt.files[0].path).read_bytes() == before


@settings(max_examples=60, deadline=None)
@given(st.lists(rows_of_one, min_size=1, max_size=7), st.integers(1, 12), st.integers(1, 4), st.data())
def test_a_probe_is_merged_by_time(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[Row]], held: int, least: int, data: Any
) -> None:
    root = tmp_path_factory.mktemp("run")
    batches = [{5: rows} for rows in parts]
    run = RunReader(root, write_run(root, 0, batches))
    stretches = [
        Stretch(run, int(record["start"]), int(record["start"] + record["length"]))
        for record in run.records(0, RING)
    ]
    # The order that Python's stable sort gives to the rows of all parts, one part after the other.
    wanted = sorted((row for _, rows in expected(batches) for row in rows), key=lambda row: row[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.probes.runs.in_time._LEAST_ROWS", least)
        merged = list(merge_by_time(stretches, held))
        assert [row for some in merged for row in rows_in(some)] == wanted
        distinct = list(without_repeated(iter(merged)))
        assert [row for some in distinct for row in rows_in(some)] == list(dict.fromkeys(wanted))
    edges = sorted({0, len(wanted), *data.draw(st.lists(st.integers(0, len(wanted)), max_size=3))})
    cut = [rows_in(some) for some in cut_at(iter(merged), np.array(edges))]
    assert cut == [wanted[low:high] for low, high in pairwise(edges)]


def shards_of(output_dir: Path) -> dict[str, str]:
    """Digests of what is published; rejects are in a file for each part."""
    found = published_digests((output_dir / "latest").resolve())
    return {name: digest for name, digest in found.items() if not name.startswith("rejects/")}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measurements")
    for number in range(12):
        table = random_table(np.random.default_rng(number), 1_000, 180)
        pq.write_table(table, folder / f"m{number:02}.parquet", row_group_size=200)
    return folder


@pytest.fixture(scope="module")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("built")
    build_serially(config_of(source, folder))
    return shards_of(folder)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part for each file, and merges from three runs on."""
    monkeypatch.setattr(inventory, "grouped", partial(grouped, group_bytes=1))
    monkeypatch.setattr(stages, "_FEW_RUNS", 3)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("spill", [False, True])
def test_merging_changes_no_record_and_a_new_file_re_makes_a_group(
    source: Path, built: dict[str, str], tmp_path: Path, spill: bool
) -> None:
    changes = {"spill_dir": str(tmp_path / "spill")} if spill else {}
    out, last = tmp_path / "out", tmp_path / "m99.parquet"
    _, serial = build_serially(config_of(source, out, **changes))
    assert shards_of(out) == built
    steps = [task for task, _ in serial.executed]
    merges = steps.count("merge")
    assert steps.count("scatter") == 12 and merges >= 1
    _, again = build_serially(config_of(source, out, **changes))
    assert again.executed == []
    pq.write_table(random_table(np.random.default_rng(99), 100, 180), last)
    _, more = build_serially(config_of([source, last], out, **changes))
    steps = [task for task, _ in more.executed]
    assert steps.count("scatter") == 1 and steps.count("merge") <= 1


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_bytes_do_not_depend_on_the_number_of_workers(
    source: Path, built: dict[str, str], tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "_PORTION_ROWS", 50)
    config = config_of(source, tmp_path)
    with ThreadPoolExecutor(workers) as pool:
        mill(
            config,
            identify(config),
            lambda step, jobs: list(reversed(list(pool.map(step.fn, reversed(jobs))))),
            lambda step, job: step.fn(job),
        )
    assert shards_of(tmp_path) == built


@pytest.mark.usefixtures("small_parts")
def test_many_shards_have_the_records_of_one(
    source: Path, built: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_serially(config_of(source, tmp_path / "one"))
    monkeypatch.setattr("tasks.probes.shards._SMALLEST_SHARD_BYTES", 20_000)
    manifest, _ = build_serially(config_of(source, tmp_path / "many"))
    assert manifest.statistics["shards"] > 8
    for split in ("train", "test"):
        one, many = (raw_records(tmp_path / name / "latest", split) for name in ("one", "many"))
        assert sorted(one) == sorted(many)


def test_a_run_ends_where_it_is_full(source: Path, built: dict[str, str], tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(layout.RUN_LIMITS, "rows", 3_000)
        _, serial = build_serially(config_of(source, tmp_path))
    assert {task for task, _ in serial.executed} == {"scatter", "gather", "validate"}
    assert shards_of(tmp_path) == built


@pytest.mark.parametrize("kept", [0, 50, -1, -71, -2_000])
def test_a_truncated_run_is_named(tmp_path: Path, kept: int) -> None:
    ref = write_run(tmp_path, 0, [{5: [(1, ADDRESSES[0], 1.0)] * 100, 9: [(1, ADDRESSES[7], 1.0)] * 100}])
    path = ref.path(tmp_path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(IntegrityError, match="this spool is damaged") as caught:
        RunReader(tmp_path, ref)
    assert (caught.value.code, caught.value.where) == ("broken_spool", str(path))


def test_a_measurement_whose_address_is_not_there_is_told(tmp_path: Path) -> None:
    ref = write_run(tmp_path, 0, [{5: [(1, ADDRESSES[0], 1.0)] * 3}])
    path = ref.path(tmp_path)
    data = path.read_bytes()
    for wrong in (7, -1):
        path.write_bytes(data[:8] + np.int32(wrong).tobytes() + data[12:])
        with pytest.raises(IntegrityError) as caught:
            RunReader(tmp_path, ref).read(0, 3)
        assert (caught.value.code, caught.value.where) == ("broken_spool", str(path))


def test_a_run_that_is_gone_is_told(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError) as caught:
        RunReader(tmp_path, RunRef(STAGE, 4))
    assert caught.value.code == "broken_spool" and "run-000004" in str(caught.value.where)
