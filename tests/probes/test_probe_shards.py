"""Shards of probes: who is train, what a shard spans, where the next one begins, and what planning looks at."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from schemas.errors import WorkError
from schemas.probes import ProbeSplit
from tasks.probes import shards
from tasks.probes.runs.layout import ITEM, RECORD
from tasks.probes.runs.place import RunRef
from tasks.probes.runs.read import RunReader
from tasks.probes.runs.windows import Probes, probes_of
from tasks.probes.runs.write import Batch, RunWriter
from tasks.probes.shards import Curve, Plan, ShardRange, SplitRule, cut_shards, plan_shards, shard_bytes_for

MIB = 1 << 20
TOP = 2**64 - 1
RING = 2**64

# (hash, address, measurements)
Row = tuple[int, str, int]


def some_probes(hashes: Sequence[int]) -> Probes:
    """Probes named a, b, c …, in the order of their hashes."""
    names = np.array([chr(ord("a") + number) for number in range(len(hashes))], "S45")
    ones = np.ones(len(hashes), np.int64)
    return Probes(np.array(hashes, np.uint64), names, ones, ones)


def batch_of(rows: Sequence[Row]) -> Batch:
    records = np.zeros(len(rows), RECORD)
    for record, (position, address, count) in zip(records, sorted(rows), strict=True):
        record["position"], record["src"], record["length"] = position, address.encode(), count
        record["dst_bytes"] = 9 * count
    items = np.zeros(int(records["length"].sum()), ITEM)
    items["time"] = np.arange(len(items))
    return Batch(records, items, pa.array(["192.0.2.1"]))


def run_of(root: Path, number: int, *batches: Sequence[Row]) -> RunReader:
    ref = RunRef("0" * 16, number)
    with RunWriter(ref.path(root)) as writer:
        for rows in batches:
            writer.append(batch_of(rows))
        writer.finish()
    return RunReader(root, ref)


def random_rows(rng: np.random.Generator, count: int, most: int = 9) -> list[Row]:
    """Probes of one to `most` measurements; a number has the same address in each run."""
    hashes = rng.integers(0, 2**64, count, np.uint64)
    return [
        (int(one), address_of(int(one)), int(rows))
        for one, rows in zip(hashes, rng.integers(1, most + 1, count), strict=True)
    ]


def address_of(position: int) -> str:
    """An address whose text order is not that of the positions."""
    return f"2001:db8::{zlib.crc32(position.to_bytes(8, 'big')):x}:{position & 0xFFFF:x}"


def plan(runs: Sequence[RunReader], root: Path, **changes: Any) -> Plan:
    rows = sum(run.spool.num_items for run in runs)
    given = {"split": ProbeSplit.HASH, "train_ratio": 0.9, **changes}
    return plan_shards(lambda: runs, 9 * rows, scratch=root, **given)


def test_shards_are_of_equal_size_and_cover_their_split() -> None:
    sizes = np.random.default_rng(0).integers(900, 1_100, 4_096)
    curve = Curve.of_buckets(sizes)
    edge = int(0.9 * RING)
    found = [*cut_shards("train", curve, 0, edge, 100_000), *cut_shards("test", curve, edge, RING, 100_000)]
    assert [found[0].low, found[-1].high] == [0, RING]
    assert all(before.high == after.low for before, after in pairwise(found))
    assert [shard.split for shard in found] == ["train"] * 37 + ["test"] * 5
    spans = [curve.bytes_before(shard.high) - curve.bytes_before(shard.low) for shard in found]
    assert max(spans) <= 100_001
    assert max(spans[:37]) - min(spans[:37]) <= 5


def test_a_position_has_as_many_bytes_before_it_as_asked() -> None:
    curve = Curve.of_buckets(np.array([100, 0, 300, 0]))
    quarter = RING // 4
    assert [curve.bytes_before(at) for at in (0, quarter // 2, quarter, 2 * quarter, RING)] == [
        0,
        50,
        100,
        100,
        400,
    ]
    assert [curve.position_of(size) for size in (0, 50, 250)] == [0, quarter // 2, 2 * quarter + quarter // 2]
    finer = curve.refined(np.array([2 * quarter, 2 * quarter + 8], np.uint64), np.array([1, 29]), 10.0)
    assert finer.bytes_before(2 * quarter + 8) == 110
    assert finer.position_of(105) == 2 * quarter + 4
    assert finer.bytes_before(RING) == 400


def test_one_busy_probe_does_not_make_uneven_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    rows = random_rows(rng, 6_000)
    busy = rows[100][0]
    rows[100] = (busy, rows[100][1], 200_000)
    runs = [run_of(tmp_path, 0, rows)]
    monkeypatch.setattr(shards, "_SMALLEST_SHARD_BYTES", 1 << 20)
    found = plan(runs, tmp_path, train_ratio=1.0).shards
    spans = []
    for shard in found:
        records = runs[0].records(shard.low, shard.high)
        if len(records) and busy not in records["position"]:
            spans.append(int(26 * records["length"].sum() + 1_200 * len(records)))
    assert len(spans) > 5 and max(spans) < 1.1 * (1 << 20)


def test_a_split_without_probes_has_no_shard(tmp_path: Path) -> None:
    low, high = [(2**62, "a", 1)], [(2**63 + 5, "b", 2)]
    both = [run_of(tmp_path, 0, low), run_of(tmp_path, 1, high)]
    edge = 2**63
    assert plan(both, tmp_path, train_ratio=0.5).shards == (
        ShardRange("train", 0, edge),
        ShardRange("test", edge, RING),
    )
    assert plan(both[:1], tmp_path, train_ratio=0.5).shards == (ShardRange("train", 0, edge),)
    assert plan(both[1:], tmp_path, train_ratio=0.5).shards == (ShardRange("test", edge, RING),)
    assert plan(both, tmp_path, train_ratio=1.0).shards == (ShardRange("train", 0, RING),)
    # The edge divides a bucket in which there are probes on one side only.
    ratio = (2**63 + 2**51) / 2**64
    assert {shard.split for shard in plan(both, tmp_path, train_ratio=ratio).shards} == {"train"}


@pytest.mark.parametrize(
    ("train_end", "expected"),
    [
        (0, [False, False, False]),
        (1, [True, False, False]),
        (2**63, [True, False, False]),
        (2**63 + 1, [True, True, False]),
        (TOP, [True, True, False]),
        # Only 2^64 is above every hash.
        (2**64, [True, True, True]),
    ],
)
def test_train_is_what_lies_below_by_hash(train_end: int, expected: list[bool]) -> None:
    assert SplitRule(train_end, None).is_train(some_probes([0, 2**63, TOP])).tolist() == expected


@pytest.mark.parametrize(
    ("first_test", "expected"),
    [("a", [False] * 3), ("b", [True, False, False]), ("bb", [True, True, False]), ("d", [True] * 3)],
)
def test_train_is_what_lies_before_in_text_order(first_test: str, expected: list[bool]) -> None:
    assert SplitRule(0, first_test).is_train(some_probes([1, 2, 3])).tolist() == expected


@pytest.mark.parametrize(
    ("count", "train_ratio", "num_train"),
    [
        (10, 0.9, 9),
        # 2.7 and 4.5 are not rounded up, 1.5 is not rounded to the even number either.
        (3, 0.9, 2),
        (1, 0.9, 0),
        (5, 0.5, 2),
        (3, 0.5, 1),
        (7, 0.5, 3),
        (4, 0.5, 2),
        (4, 1.0, 4),
        (3, 0.99, 2),
        (1, 1.0, 1),
    ],
)
def test_a_sorted_split_gives_train_the_first_addresses(
    tmp_path: Path, count: int, train_ratio: float, num_train: int
) -> None:
    order = np.random.default_rng(count).permutation(count)
    names = [chr(ord("a") + number) for number in range(count)]
    runs = [run_of(tmp_path, 0, [(10 * place, names[number], 1) for place, number in enumerate(order)])]
    rule = plan(runs, tmp_path, split=ProbeSplit.SORTED, train_ratio=train_ratio).rule
    probes = probes_of([runs[0].records(0, RING)])
    is_train = rule.is_train(probes)
    assert sorted(probes.addresses[is_train].tolist()) == [name.encode() for name in names[:num_train]]
    expected = SplitRule(2**64, None) if num_train == count else SplitRule(0, names[num_train])
    assert rule == expected


@pytest.mark.parametrize("held", [1, 10, 1 << 20])
def test_a_sorted_split_is_the_same_however_much_is_sorted_in_memory(
    tmp_path: Path, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(held)
    rows = random_rows(rng, 500)
    runs = [
        run_of(tmp_path, number, rng.permutation(np.array(rows, object))[:400].tolist())
        for number in range(3)
    ]
    present = sorted({r["src"].decode() for run in runs for r in run.records(0, RING)})
    monkeypatch.setattr(shards, "_SORTED_ADDRESSES", held)
    monkeypatch.setattr(shards, "_SMALLEST_SHARD_BYTES", 100_000)
    found = plan(runs, tmp_path, split=ProbeSplit.SORTED, train_ratio=0.3)
    assert found.rule == SplitRule(0, present[int(0.3 * len(present))])
    assert {shard.split for shard in found.shards} == {"train", "test"}


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (0, 64 * MIB),
        (96 * 64 * MIB, 64 * MIB),
        (96 * 64 * MIB + 1, 128 * MIB),
        (10**13, 512 * MIB),
    ],
)
def test_shards_grow_by_powers_of_two_up_to_a_limit(total: int, expected: int) -> None:
    assert shard_bytes_for(total) == expected


def test_probes_of_all_runs_are_added_up(tmp_path: Path) -> None:
    runs = [
        run_of(tmp_path, 0, [(30, "c", 3), (TOP, "z", 1)]),
        run_of(tmp_path, 1, [(10, "a", 1), (30, "c", 4)], [(30, "c", 5)]),
        run_of(tmp_path, 2, [(20, "b", 7)]),
    ]
    probes = probes_of([run.records(0, RING) for run in runs])
    assert probes.hashes.tolist() == [10, 20, 30, TOP]
    assert probes.hashes.dtype == np.uint64
    assert probes.addresses.tolist() == [b"a", b"b", b"c", b"z"]
    assert probes.rows.tolist() == [1, 7, 12, 1]
    assert probes.dst_bytes.tolist() == [9, 63, 108, 9]
    assert len(probes_of([]).hashes) == 0


@pytest.mark.parametrize("bits", [0, 3])
def test_probes_are_counted_from_a_few_records(
    tmp_path: Path, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = random_rows(np.random.default_rng(bits), 20_000)
    runs = [run_of(tmp_path, number, rows) for number in range(2)]
    monkeypatch.setattr(shards, "_SURVEY_RECORDS", 40_000 >> bits)
    found = shards._count_probes(lambda: runs)
    assert found == 20_000 if bits == 0 else abs(found - 20_000) < 1_500


def test_two_probes_of_one_hash_are_refused(tmp_path: Path) -> None:
    runs = [run_of(tmp_path, 0, [(10, "a", 1)]), run_of(tmp_path, 1, [(10, "b", 1)])]
    with pytest.raises(WorkError) as caught:
        probes_of([run.records(0, RING) for run in runs])
    assert (caught.value.code, caught.value.where) == ("hash_collision", "seed")
