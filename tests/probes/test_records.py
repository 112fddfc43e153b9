"""The kernels of build-probe-rows: record bytes, cuts, sorting, shards; and a verdict for every kind of damage."""

from __future__ import annotations

import hashlib
import io
import struct
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from array_record.python.array_record_module import ArrayRecordReader
from measurements import build_serially, config_of, random_table, raw_records
from workloads import ROOT

from schemas.errors import IntegrityError, StorageError, WorkError
from schemas.probes import measurements_schema, record_schema
from tasks.packing.arrays import stable_order
from tasks.probes.records.decode import read_record
from tasks.probes.records.encode import Block, block_of, cut_evenly, encode_records, measurements_bytes
from tasks.probes.records.process import write_records
from tasks.probes.records.writer import ShardWriter, count_records
from tasks.probes.rows.sorting import cut_ranges, time_order
from tasks.probes.runs.windows import refuse_collisions
from tasks.probes.validate import validate_records

SIZES = [1, 2, 3, 5, 7, 8, 9, 63, 64, 65, 1_000]


def a_block(rng: np.random.Generator, sizes: list[int]) -> Block:
    """Probes of so many measurements, IPv4 and IPv6, with addresses of many lengths."""
    rows = sum(sizes)
    addresses = [f"2001:db8::{i:x}" if i % 3 == 1 else f"192.0.2.{i}" for i in range(len(sizes))]
    targets = pa.array([f"198.51.{i % 7}.{i % 251}" for i in range(5_000)], pa.large_string())
    starts = np.concatenate([[0], np.cumsum(sizes)])
    times = np.concatenate([np.sort(rng.integers(0, 10**15, size)) for size in sizes])
    codes = rng.integers(0, len(targets), rows).astype(np.int32)
    return block_of(addresses, starts, times, codes, targets, rng.normal(20, 9, rows).astype(np.float32))


def encoded(block: Block, max_bytes: int = 1 << 23) -> list[bytes]:
    """The records of a block, one by one."""
    records = []
    for some in encode_records(block, max_bytes):
        ends = np.cumsum(some.sizes)
        assert ends[-1] == len(some.data)
        records += [bytes(some.data[end - size : end]) for end, size in zip(ends, some.sizes, strict=True)]
    return records


def written_by_arrow(batch: pa.RecordBatch) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def fresh(block: Block, probe: int) -> pa.RecordBatch:
    """The measurements of a probe as arrays of their own, made from Python values."""
    rows = slice(block.starts[probe], block.starts[probe + 1])
    dst = [block.targets[code].as_py() for code in block.dst_codes[rows].tolist()]
    times, rtts = block.times[rows].tolist(), block.rtts[rows].tolist()
    columns = [times, dst, [int(block.versions[probe])] * len(times), rtts]
    return pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, measurements_schema(), strict=True)],
        schema=measurements_schema(),
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_records_are_what_arrow_writes_from_fresh_arrays(seed: int) -> None:
    rng = np.random.default_rng(seed)
    # Several chunks, odd and even sizes, one that is a chunk by itself.
    sizes = [*SIZES, 60_000, *rng.integers(1, 3_000, 60).tolist(), 1]
    block = a_block(rng, sizes)
    records = encoded(block)
    assert len(records) == len(sizes)
    for probe, data in enumerate(records):
        address, inner = block.addresses[probe], fresh(block, probe)
        blob = written_by_arrow(inner)
        texts = sum(map(len, inner.column(1).to_pylist()))
        assert len(blob) == measurements_bytes(inner.num_rows, texts)
        times = inner.column(0).cast(pa.int64()).to_pylist()
        identifier = int(hashlib.md5(address.encode()).hexdigest()[:15], 16)  # noqa: S324
        span = (times[-1] - times[0]) / 1e6
        values = [identifier, blob, len(times), span, times[0], times[-1], address, 0, 1]
        outer = pa.record_batch(
            [pa.array([value], field.type) for value, field in zip(values, record_schema(), strict=True)],
            schema=record_schema(),
        )
        assert data == written_by_arrow(outer)
    record, broken = read_record(records[len(SIZES)])
    assert record is not None and record.measurements.equals(fresh(block, len(SIZES)))
    assert broken == []


@pytest.mark.parametrize("limit", [4_096, 5_000, 20_000, 10**6])
def test_cuts_are_even_and_within_the_limit(limit: int) -> None:
    block = a_block(np.random.default_rng(limit), [100, 2_900, 3])
    lengths = np.diff(block.dst_offsets[100:3_001])
    edges = cut_evenly(lambda: [lengths], 2_900, int(lengths.sum()), limit)
    assert edges[0] == 0 and edges[-1] == 2_900 and edges.tolist() == sorted(set(edges.tolist()))
    for step in (1, 7, 2_899):
        pieces = [lengths[first : first + step] for first in range(0, 2_900, step)]
        again = cut_evenly(lambda pieces=pieces: pieces, 2_900, int(lengths.sum()), limit)
        assert again.tolist() == edges.tolist()
    ends = block.dst_offsets[edges + 100]
    sizes = measurements_bytes(np.diff(edges), np.diff(ends))
    assert max(sizes) <= limit
    assert max(sizes) - min(sizes) < 100
    whole = measurements_bytes(2_900, ends[-1] - ends[0])
    assert len(sizes) <= -(-whole // limit) + 1 + whole // limit // 3
    found = [read_record(data)[0] for data in encoded(block, limit)]
    parts = [record for record in found if record is not None and record.src_addr == block.addresses[1]]
    assert [record.blob_bytes for record in parts] == sizes.tolist()
    assert [(record.part, record.n_parts) for record in parts] == [(i, len(sizes)) for i in range(len(sizes))]
    joined = pa.Table.from_batches([record.measurements for record in parts])
    assert joined.equals(pa.Table.from_batches([fresh(block, 1)]))
    assert found[-1] is not None and (found[-1].part, found[-1].n_parts) == (0, 1)


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


def test_ranges_hold_every_item_once() -> None:
    sizes = np.random.default_rng(2).integers(1, 100, 500)
    ranges = list(cut_ranges(sizes, 250))
    assert ranges[0][0] == 0 and ranges[-1][1] == 500
    assert all(before[1] == after[0] for before, after in pairwise(ranges))
    assert max(int(sizes[low:high].sum()) for low, high in ranges) <= 250


def test_equal_hashes_are_refused() -> None:
    with pytest.raises(WorkError) as caught:
        refuse_collisions(np.array([False, True]))
    assert caught.value.code == "hash_collision" and caught.value.where == "seed"


def write_shard(path: Path, *records: bytes) -> Path:
    with ShardWriter(path, "group_size:1") as writer:
        writer.add(np.array([len(record) for record in records]), b"".join(records))
    return path


def test_a_shard_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.arrayrecord"
    with pytest.raises(ZeroDivisionError), ShardWriter(path, "group_size:1") as writer:
        writer.add(np.array([3]), b"one")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    with ShardWriter(path, "group_size:1") as writer:
        writer.add(np.array([3, 0, 2]), b"onexx")
        writer.add(np.array([], np.int64), b"")
        assert not path.exists()
    assert ArrayRecordReader(str(path)).read_all() == [b"one", b"", b"xx"]
    assert count_records(path) == 3
    record = writer.record(tmp_path)
    assert record.bytes == path.stat().st_size
    assert record.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    (tmp_path / "c.arrayrecord").write_bytes(path.read_bytes()[:100])
    for name in ("c.arrayrecord", "missing.arrayrecord"):
        with pytest.raises(IntegrityError) as caught:
            count_records(tmp_path / name)
        assert caught.value.code == "bad_arrayrecord"


def test_what_the_writing_process_cannot_do_is_told(tmp_path: Path) -> None:
    path = tmp_path / "b.arrayrecord"
    megabyte = np.array([1 << 20]), bytes(1 << 20)
    with pytest.raises(StorageError, match="no such option") as caught:
        write_shard(path, b"one")
        with ShardWriter(path, "no such option") as writer:
            for _ in range(4):
                writer.add(*megabyte)
    assert caught.value.where == str(path)
    with pytest.raises(StorageError, match="ended with -9"), ShardWriter(path, "group_size:1") as writer:
        writer._process.kill()
        for _ in range(4):
            writer.add(*megabyte)
    # What was there stays.
    assert count_records(path) == 1 and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("sent", [0, 4, 8, 20, 24, 27])
def test_the_writing_process_closes_no_file_that_was_not_finished(sent: int) -> None:
    class Written(list[bytes]):
        write = list.append

    stream = struct.pack("<qqq", 2, 3, 5) + b"oneotherx"
    written = Written()
    assert not write_records(io.BytesIO(stream[:sent]), written)
    assert written == ([b"one"] if sent >= 27 else [])
    assert write_records(io.BytesIO(stream[:-1] + bytes(8)), written) and written[-1] == b"other"


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
    write_shard(path, by_hand(**change))
    verdict = validate_records([path], "file", str(path))
    assert rule in {fault.rule for fault in verdict.errors}


def test_other_bytes_are_no_record() -> None:
    good = by_hand()
    for data in (b"", b"nonsense", good[:200], good[:-8], good + good, good + b"\0" * 8):
        record, broken = read_record(data)
        assert record is None and broken[0][0] == "schema", data[:20]


def test_faults_over_several_records(tmp_path: Path) -> None:
    def shard(name: str, *records: bytes) -> Path:
        return write_shard(tmp_path / name, *records)

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
    write_shard(path, *kept[1:])
    verdict = validate_probes(folder, manifest, full=True)
    assert {fault.rule for fault in verdict.errors} == {"totals"}
    assert "totals" in {fault.rule for fault in validate_probes(folder, manifest, full=False).errors}

    record, _ = read_record(kept[0])
    assert record is not None
    changed = record.measurements.column(3).to_numpy().copy()
    changed[0] += 1
    rows = len(changed)
    targets = record.measurements.column(1).cast(pa.large_string())
    codes = np.arange(rows, dtype=np.int32)
    [forged] = encoded(
        block_of([record.src_addr], np.array([0, rows]), record.times.copy(), codes, targets, changed)
    )
    path.unlink()
    write_shard(path, forged, *kept[1:])
    verdict = validate_probes(folder, manifest, full=True)
    assert [fault.rule for fault in verdict.errors] == ["contents", "contents"]
    (tmp_path / "a.parquet").unlink()
    warned = validate_probes(folder, manifest, full=True)
    assert warned.ok and [fault.rule for fault in warned.faults] == ["proof"]


def test_a_limit_of_memory_that_its_reader_would_hang_on_is_named(tmp_path: Path) -> None:
    code = (
        "import resource, sys\n"
        "from tasks.probes.records.writer import array_record_module, count_records\n"
        "array_record_module()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (900 << 20, 900 << 20))\n"
        "from schemas.errors import WorkError\n"
        "try:\n    count_records(sys.argv[1])\nexcept WorkError as error:\n    print(error.code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "any"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.returncode) == ("memory_limit\n", 0), done.stderr
