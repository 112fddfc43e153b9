"""Shards of probes, case by case: who is train, what a shard spans, and where the next one begins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from schemas.errors import WorkError
from schemas.probes import ProbeSplit
from tasks.probes import shards
from tasks.probes.shards import (
    Probes,
    ShardRange,
    SplitRule,
    cut_shards,
    merge_probes,
    shard_bytes_for,
    split_rule,
)
from tasks.probes.spill import PROBES_SCHEMA

MIB = 1 << 20
TOP = 2**64 - 1


def probes_of(rows: Sequence[int], hashes: Sequence[int] | None = None, dst_bytes: int = 0) -> Probes:
    """Probes named a, b, c …, in the order of their hashes."""
    count = len(rows)
    return Probes(
        np.array(range(10, 10 * count + 10, 10) if hashes is None else hashes, np.uint64),
        pa.array([chr(ord("a") + number) for number in range(count)], pa.large_string()),
        np.array(rows, np.int64),
        np.full(count, dst_bytes, np.int64),
    )


ALL_TRAIN, ALL_TEST = SplitRule(2**64, None), SplitRule(0, None)


def test_a_record_is_its_rows_its_addresses_and_its_frames() -> None:
    probes = Probes(np.arange(2, dtype=np.uint64), pa.array(["a", "b"]), np.array([0, 3]), np.array([0, 40]))
    assert probes.record_bytes().tolist() == [1200, 1291]


@pytest.mark.parametrize(
    ("rows", "shard_bytes", "expected"),
    [
        # 1,217 bytes a probe: 6,085 in all.
        ([1] * 5, 6_085, [5]),
        ([1] * 5, 6_084, [3, 2]),
        ([1] * 5, 3_043, [3, 2]),
        ([1] * 5, 3_042, [2, 2, 1]),
        ([1] * 5, 1_217, [1, 1, 1, 1, 1]),
        # No probe is divided, and none is lost, where a shard may span less than one.
        ([1] * 5, 1, [1, 1, 1, 1, 1]),
        ([1], 10**9, [1]),
        # One large probe: what begins before it stays before it.
        ([1, 1000, 1, 1], 10_000, [2, 2]),
        ([1000, 1, 1, 1], 10_000, [1, 3]),
        ([1, 1, 1, 1000], 10_000, [4]),
    ],
)
def test_a_probe_lies_in_the_shard_of_its_first_byte(
    rows: list[int], shard_bytes: int, expected: list[int]
) -> None:
    probes = probes_of(rows)
    plans = cut_shards(probes, ALL_TRAIN, shard_bytes)
    assert [plan.probes for plan in plans] == expected
    edges = np.cumsum([0, *expected])
    for plan, low, high in zip(plans, edges, edges[1:], strict=False):
        assert plan == ShardRange(
            "train", 10 * int(low) + 10, 10 * int(high), int(high - low), sum(rows[low:high])
        )


def test_train_comes_first_and_a_split_without_probes_has_no_shard() -> None:
    probes = probes_of([1, 2, 3], [5, 7, 9])
    assert cut_shards(probes, SplitRule(7, None), 10**6) == [
        ShardRange("train", 5, 5, 1, 1),
        ShardRange("test", 7, 9, 2, 5),
    ]
    assert cut_shards(probes, ALL_TRAIN, 10**6) == [ShardRange("train", 5, 9, 3, 6)]
    assert cut_shards(probes, ALL_TEST, 10**6) == [ShardRange("test", 5, 9, 3, 6)]
    assert cut_shards(probes_of([]), ALL_TRAIN, 10**6) == []


def test_splits_whose_hashes_alternate_are_cut_apart() -> None:
    probes = probes_of([1, 2, 3, 4], [5, 7, 9, TOP])
    assert cut_shards(probes, SplitRule(0, "c"), 10**6) == [
        ShardRange("train", 5, 7, 2, 3),
        ShardRange("test", 9, TOP, 2, 7),
    ]
    every_other = Probes(probes.hashes, pa.array(["a", "z", "b", "y"]), probes.rows, probes.dst_bytes)
    assert cut_shards(every_other, SplitRule(0, "y"), 10**6) == [
        ShardRange("train", 5, 9, 2, 4),
        ShardRange("test", 7, TOP, 2, 6),
    ]


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
    probes = probes_of([1, 1, 1], [0, 2**63, TOP])
    assert SplitRule(train_end, None).is_train(probes.hashes, probes.addresses).tolist() == expected


@pytest.mark.parametrize(
    ("first_test", "expected"),
    [("a", [False] * 3), ("b", [True, False, False]), ("bb", [True, True, False]), ("d", [True] * 3)],
)
def test_train_is_what_lies_before_in_text_order(first_test: str, expected: list[bool]) -> None:
    probes = probes_of([1, 1, 1])
    assert SplitRule(0, first_test).is_train(probes.hashes, probes.addresses).tolist() == expected


@pytest.mark.parametrize(
    ("count", "train_ratio", "num_train"),
    [
        # Rounded down: 2.7 and 0.9 probes are 2 and none; 2.5 is not rounded to the even number either.
        (3, 0.9, 2),
        (1, 0.9, 0),
        (5, 0.5, 2),
        (3, 0.5, 1),
        (7, 0.5, 3),
        (4, 0.5, 2),
        (4, 0.0, 0),
        (4, 1.0, 4),
        (3, 0.99, 2),
        (1, 1.0, 1),
        (0, 0.9, 0),
        (0, 0.0, 0),
    ],
)
def test_a_sorted_split_gives_train_the_first_addresses(
    count: int, train_ratio: float, num_train: int
) -> None:
    order = np.random.default_rng(count).permutation(count)
    names = [chr(ord("a") + number) for number in range(count)]
    probes = Probes(
        np.arange(count, dtype=np.uint64),
        pa.array([names[number] for number in order], pa.large_string()),
        np.ones(count, np.int64),
        np.ones(count, np.int64),
    )
    rule = split_rule(ProbeSplit.SORTED, train_ratio, probes)
    is_train = rule.is_train(probes.hashes, probes.addresses)
    assert sorted(probes.addresses.filter(pa.array(is_train)).to_pylist()) == names[:num_train]
    if num_train == count:
        assert rule == SplitRule(2**64, None)
    else:
        assert rule == SplitRule(0, names[num_train])


@pytest.mark.parametrize(
    ("train_ratio", "train_end"), [(0.0, 0), (0.5, 2**63), (0.75, 3 * 2**62), (1.0, 2**64)]
)
def test_a_split_by_hash_looks_at_no_probe(train_ratio: float, train_end: int) -> None:
    for probes in (probes_of([]), probes_of([1, 1], [0, TOP])):
        assert split_rule(ProbeSplit.HASH, train_ratio, probes) == SplitRule(train_end, None)


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (0, 64 * MIB),
        (96 * 64 * MIB, 64 * MIB),
        (96 * 64 * MIB + 1, 128 * MIB),
    ],
)
def test_shards_grow_by_powers_of_two(total: int, expected: int) -> None:
    assert shard_bytes_for(total) == expected


def batch(*probes: tuple[int, str, int, int]) -> pa.RecordBatch:
    columns = zip(*probes, strict=True) if probes else [()] * 4
    return pa.record_batch([list(column) for column in columns], schema=PROBES_SCHEMA)


@pytest.mark.parametrize("held", [0, 1, 2, 1 << 18])
def test_probes_of_all_runs_are_added_up(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_HELD_PROBES", held)
    runs = [
        batch((30, "c", 3, 300), (TOP, "z", 1, 10)),
        batch(),
        batch((10, "a", 1, 100), (30, "c", 4, 401)),
        batch((30, "c", 5, 5)),
        batch((20, "b", 7, 700)),
    ]
    probes = merge_probes(iter(runs))
    assert probes.hashes.tolist() == [10, 20, 30, TOP]
    assert probes.hashes.dtype == np.uint64
    assert probes.addresses.to_pylist() == ["a", "b", "c", "z"]
    assert probes.addresses.type == pa.large_string()
    assert probes.rows.tolist() == [1, 7, 12, 1]
    assert probes.dst_bytes.tolist() == [100, 700, 706, 10]


def test_no_runs_have_no_probes() -> None:
    probes = merge_probes([])
    assert (len(probes.hashes), len(probes.addresses), len(probes.rows)) == (0, 0, 0)


def test_two_probes_of_one_hash_are_refused() -> None:
    with pytest.raises(WorkError) as caught:
        merge_probes([batch((10, "a", 1, 1)), batch((10, "b", 1, 1))])
    assert caught.value.code == "hash_collision"
