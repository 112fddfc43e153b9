"""The kernels of build-probe-rows: record bytes, cuts, sorting, shards; and a verdict for every kind of damage."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from measurements import build_serially, config_of, random_table, raw_records
from numpy.typing import NDArray

from schemas.errors import IntegrityError, StorageError, WorkError
from schemas.probes import TEST, TRAIN, measurements_schema, record_schema
from tasks.probes.arrayrecord_writer import ShardWriter, count_records
from tasks.probes.decoding import read_record
from tasks.probes.plan import Probes, SplitRule, cut_portions, cut_shards
from tasks.probes.records import (
    Block,
    block_of,
    cut_evenly,
    encode_record,
    measurement_pieces,
    measurements_bytes,
)
from tasks.probes.scatter import refuse_collisions
from tasks.probes.sorting import stable_order, time_order
from tasks.probes.validate import validate_records

SIZES = [1, 2, 3, 5, 7, 8, 9, 63, 64, 65, 1_000]


def a_block(rng: np.random.Generator, rows: int) -> Block:
    dst = pa.array([f"198.51.{i % 7}.{i % 251}" for i in rng.integers(0, 5_000, rows)], pa.large_string())
    return block_of(
        np.sort(rng.integers(0, 10**15, rows)),
        dst,
        np.full(rows, 4, np.int8),
        rng.normal(20, 9, rows).astype(np.float32),
    )


def encode_measurements(block: Block, start: int, stop: int) -> bytes:
    return b"".join(measurement_pieces(block, start, stop))


def written_by_arrow(batch: pa.RecordBatch) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def fresh(block: Block, start: int, stop: int) -> pa.RecordBatch:
    """The rows as arrays of their own, made from Python values."""
    ends = block.dst_offsets.tolist()
    data = bytes(block.dst_data)
    dst = [
        data[low:high].decode()
        for low, high in zip(ends[start:stop], ends[start + 1 : stop + 1], strict=True)
    ]
    columns = [
        block.times[start:stop].tolist(),
        dst,
        block.versions[start:stop].tolist(),
        block.rtts[start:stop].tolist(),
    ]
    return pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, measurements_schema(), strict=True)],
        schema=measurements_schema(),
    )


@pytest.mark.parametrize("rows", SIZES)
def test_a_record_is_what_arrow_writes_from_fresh_arrays(rows: int) -> None:
    block = a_block(np.random.default_rng(rows), rows + 9)
    blob = encode_measurements(block, 4, 4 + rows)
    assert blob == written_by_arrow(fresh(block, 4, 4 + rows))
    assert len(blob) == measurements_bytes(rows, int(block.dst_offsets[4 + rows] - block.dst_offsets[4]))
    first, last = int(block.times[4]), int(block.times[3 + rows])
    data = encode_record("192.0.2.1", [blob], rows, first, last, 0, 1)
    values = [941121303211370278, blob, rows, (last - first) / 1e6, first, last, "192.0.2.1", 0, 1]
    outer = pa.record_batch(
        [pa.array([value], field.type) for value, field in zip(values, record_schema(), strict=True)],
        schema=record_schema(),
    )
    assert data == written_by_arrow(outer)
    record, broken = read_record(data)
    assert broken == [] and record is not None
    assert record.measurements.equals(fresh(block, 4, 4 + rows))


@pytest.mark.parametrize("limit", [4_096, 5_000, 20_000, 10**6])
def test_cuts_are_even_and_within_the_limit(limit: int) -> None:
    block = a_block(np.random.default_rng(limit), 3_000)
    edges = cut_evenly(block, 100, 3_000, limit)
    assert edges[0] == 100 and edges[-1] == 3_000 and edges == sorted(set(edges))
    sizes = [len(encode_measurements(block, low, high)) for low, high in pairwise(edges)]
    assert max(sizes) <= limit
    assert max(sizes) - min(sizes) < 100
    whole = len(encode_measurements(block, 100, 3_000))
    assert len(sizes) <= -(-whole // limit) + 1 + whole // limit // 3


@pytest.mark.parametrize("num_keys", [1, 2, 1 << 16, (1 << 16) + 1, 1 << 20])
def test_stable_order_is_that_of_a_stable_sort(num_keys: int) -> None:
    keys = np.random.default_rng(num_keys).integers(0, num_keys, 5_000).astype(np.int32)
    assert stable_order(keys, num_keys).tolist() == np.argsort(keys, kind="stable").tolist()


def test_time_order_sorts_within_groups_and_keeps_ties() -> None:
    rng = np.random.default_rng(0)
    groups = np.sort(rng.integers(0, 40, 2_000))
    times = rng.integers(0, 30, 2_000)
    order = time_order(groups, times)
    assert order is not None
    assert order.tolist() == sorted(range(2_000), key=lambda i: (groups[i], times[i]))
    assert time_order(groups, np.arange(2_000)) is None


def some_probes(rows: list[int]) -> Probes:
    hashes: NDArray[np.uint64] = np.arange(len(rows), dtype=np.uint64) * np.uint64(2**64 // len(rows))
    counts = np.array(rows)
    addresses = pa.array([f"10.0.0.{i}" for i in range(len(rows))], pa.large_string())
    return Probes(hashes, addresses, counts, 12 * counts)


def test_shards_hold_every_probe_once_and_are_about_equal() -> None:
    rows = np.random.default_rng(1).integers(1, 5_000, 200).tolist()
    probes = some_probes(rows)
    shards = cut_shards(probes, SplitRule(2**63, None), shard_bytes=1_000_000)
    assert sum(shard.rows for shard in shards) == sum(rows)
    assert sum(shard.probes for shard in shards) == 200
    assert [shard.split for shard in shards] == sorted((shard.split for shard in shards), reverse=True)
    for split in (TRAIN, TEST):
        mine = [shard for shard in shards if shard.split == split]
        for before, after in pairwise(mine):
            assert before.last_hash < after.first_hash
            assert 0.7 < before.rows / after.rows < 1.4
    one = cut_shards(probes, SplitRule(2**64, None), shard_bytes=1 << 40)
    assert [(shard.split, shard.probes) for shard in one] == [(TRAIN, 200)]


def test_portions_hold_every_probe_once() -> None:
    rows = np.random.default_rng(2).integers(1, 100, 500)
    portions = cut_portions(rows, 250)
    assert portions[0][0] == 0 and portions[-1][1] == 500
    assert all(before[1] == after[0] for before, after in pairwise(portions))
    assert max(int(rows[low:high].sum()) for low, high in portions) <= 250


def test_equal_hashes_are_refused() -> None:
    with pytest.raises(WorkError) as caught:
        refuse_collisions(np.array([1, 5, 5], np.uint64))
    assert caught.value.code == "hash_collision" and caught.value.where == "seed"


def test_a_shard_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.arrayrecord"
    with pytest.raises(ZeroDivisionError), ShardWriter(path, "group_size:1") as writer:
        writer.add(b"one")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    with ShardWriter(path, "group_size:1") as writer:
        writer.add(b"one")
        assert not path.exists()
    assert count_records(path) == 1
    record = writer.record(tmp_path)
    assert record.bytes == path.stat().st_size
    with pytest.raises(StorageError):
        ShardWriter(tmp_path / "b.arrayrecord", "no such option")
    (tmp_path / "c.arrayrecord").write_bytes(path.read_bytes()[:100])
    for name in ("c.arrayrecord", "missing.arrayrecord"):
        with pytest.raises(IntegrityError) as caught:
            count_records(tmp_path / name)
        assert caught.value.code == "bad_arrayrecord"


GOOD = {
    "times": [5, 6, 6], "dst": ["192.0.2.9"] * 3, "versions": [4, 4, 4], "rtts": [1.0, -1.0, 2.0],
    "src_id": 941121303211370278, "n": 3, "span": 1e-6, "first": 5, "last": 6, "src": "192.0.2.1",
    "part": 0, "n_parts": 1,
}  # fmt: skip


def by_hand(**changes: Any) -> bytes:
    """A record from values, right or wrong."""
    given = {**GOOD, **changes}
    columns = [given["times"], given["dst"], given["versions"], given["rtts"]]
    inner = pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, measurements_schema(), strict=True)],
        schema=measurements_schema(),
    )
    blob = given.get("blob", written_by_arrow(inner))
    values = [
        given["src_id"],
        blob,
        *(given[k] for k in ("n", "span", "first", "last", "src", "part", "n_parts")),
    ]
    outer = [pa.array([value], field.type) for value, field in zip(values, record_schema(), strict=True)]
    return written_by_arrow(pa.record_batch(outer, schema=record_schema()))


def leaking() -> bytes:
    """Measurements written from a slice: the padding holds the neighbour's bytes."""
    columns = [[5, 6, 6, 9], ["192.0.2.9"] * 4, [4, 4, 4, 4], [1.0, -1.0, 2.0, 3.0]]
    batch = pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, measurements_schema(), strict=True)],
        schema=measurements_schema(),
    )
    return written_by_arrow(batch.slice(0, 3))


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"times": [6, 5, 6], "first": 6}, "order"),
        ({"times": [-5, 6, 6], "first": -5, "span": 11e-6}, "time"),
        ({"n": 2}, "count"),
        ({"first": 4}, "span"), ({"last": 7}, "span"), ({"span": 2.0}, "span"),
        ({"src_id": 1}, "src_id"), ({"src": "192.0.2.2"}, "src_id"),
        ({"src": "nobody"}, "ip_version"), ({"versions": [4, 6, 4]}, "ip_version"),
        ({"dst": ["192.0.2.9", "x", "::1"]}, "ip_version"),
        ({"rtts": [1.0, float("nan"), 1.0]}, "rtt"), ({"rtts": [1.0, 1e9, 1.0]}, "rtt"),
        ({"rtts": [1.0, None, 1.0]}, "nulls"), ({"src": None}, "nulls"),
        ({"part": 1}, "parts"), ({"n_parts": 0}, "parts"),
        ({"blob": b"nonsense"}, "schema"), ({"blob": leaking()}, "padding"),
    ],
)  # fmt: skip
def test_every_broken_rule_is_named(change: dict[str, Any], rule: str, tmp_path: Path) -> None:
    assert read_record(by_hand())[1] == []
    assert rule in [name for name, _ in read_record(by_hand(**change))[1]]
    path = tmp_path / "train-00000-of-00001.arrayrecord"
    with ShardWriter(path, "group_size:1") as writer:
        writer.add(by_hand(**change))
    verdict = validate_records([path], "file", str(path))
    assert rule in {fault.rule for fault in verdict.errors}


def test_other_bytes_are_no_record() -> None:
    good = by_hand()
    for data in (b"", b"nonsense", good[:200], good[:-8], good + good, good + b"\0" * 8):
        record, broken = read_record(data)
        assert record is None and broken[0][0] == "schema", data[:20]


def test_faults_over_several_records(tmp_path: Path) -> None:
    def shard(name: str, *records: bytes) -> Path:
        with ShardWriter(tmp_path / name, "group_size:1") as writer:
            for record in records:
                writer.add(record)
        return tmp_path / name

    def rules(*shards: Path) -> set[str]:
        return {fault.rule for fault in validate_records(shards, "folder", "").errors}

    parts = [by_hand(part=part, n_parts=3) for part in range(3)]
    later = {"times": [7, 7, 7], "first": 7, "last": 7, "span": 0.0}
    right = [by_hand(n_parts=2), by_hand(part=1, n_parts=2, **later)]
    assert rules(shard("train-0.arrayrecord", *right)) == set()
    assert rules(shard("train-0.arrayrecord", *right[::-1])) >= {"parts"}
    assert rules(shard("train-0.arrayrecord", *parts)) == {"order"}
    assert rules(shard("train-0.arrayrecord", right[0])) == {"parts"}
    assert rules(shard("train-0.arrayrecord", by_hand(), by_hand())) == {"repeated_probe"}
    assert rules(shard("train-0.arrayrecord", by_hand()), shard("test-0.arrayrecord", by_hand())) == {"split"}


def test_a_run_that_lost_or_gained_measurements_is_not_valid(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    from tasks.probes.validate import validate_probes

    pq.write_table(random_table(np.random.default_rng(0), 3_000, 60), tmp_path / "a.parquet")
    manifest, _ = build_serially(config_of(tmp_path / "a.parquet", tmp_path / "out"))
    folder = (tmp_path / "out" / "latest").resolve()
    path = folder / "train-00000-of-00001.arrayrecord"
    kept = raw_records(folder, "train")
    path.unlink()
    with ShardWriter(path, "group_size:1") as writer:
        for record in kept[1:]:
            writer.add(record)
    verdict = validate_probes(folder, manifest, full=True)
    assert {fault.rule for fault in verdict.errors} == {"totals"}
    assert "totals" in {fault.rule for fault in validate_probes(folder, manifest, full=False).errors}

    record, _ = read_record(kept[0])
    assert record is not None
    changed = record.measurements.column(3).to_numpy().copy()
    changed[0] += 1
    block = block_of(
        record.times.copy(),
        record.measurements.column(1).cast(pa.large_string()),
        record.measurements.column(2).to_numpy().copy(),
        changed,
    )
    rows = len(changed)
    blob = encode_measurements(block, 0, rows)
    first, last = int(record.times[0]), int(record.times[-1])
    forged = encode_record(record.src_addr, [blob], rows, first, last, 0, 1)
    path.unlink()
    with ShardWriter(path, "group_size:1") as writer:
        for data in [forged, *kept[1:]]:
            writer.add(data)
    verdict = validate_probes(folder, manifest, full=True)
    assert [fault.rule for fault in verdict.errors] == ["contents", "contents"]
    (tmp_path / "a.parquet").unlink()
    warned = validate_probes(folder, manifest, full=True)
    assert warned.ok and [fault.rule for fault in warned.faults] == ["proof"]
