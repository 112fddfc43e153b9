"""From spools to bins: splits, deduplication, the overflow rule, padding, shards; nothing lost on the way."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from schemas.run import RowLedger
from schemas.sft import PackConfig, SplitsConfig, StorageConfig
from tasks.packing.arrays import repeated
from tasks.run.layout import stage_folder
from tasks.sft.gather import PackPlan, gather
from tasks.sft.plan import PlanJob, longest_stored, plan_packs
from tasks.sft.shards.parquet_writer import ParquetShardWriter
from tasks.sft.shards.shard import ShardMetadata
from tasks.sft.shards.validate import validate_shard
from tasks.sft.splits import in_split, unit_hash
from tasks.sft.spool import Rows, Spool, SpoolWriter
from tasks.sft.write import WriteJob, write_shards

Sequence = tuple[list[int], list[int]]


def spool(root: Path, stage: str, rows: list[list[Sequence]], digests: list[int] | None = None) -> str:
    """A spool whose row i has the given sequences of (ids, stored mask)."""
    sequences = [sequence for row in rows for sequence in row]
    numbers = np.arange(len(rows))
    keys = np.array(digests if digests is not None else numbers, dtype=np.uint64)
    with SpoolWriter(stage_folder(root, stage)) as writer:
        writer.append(
            np.array([i for ids, _ in sequences for i in ids], np.int32),
            np.array([m for _, mask in sequences for m in mask], np.uint8),
            np.array([len(ids) for ids, _ in sequences], np.int64),
            np.repeat(numbers, [len(row) for row in rows]).astype(np.int32),
            Rows(numbers.astype(np.int32) * 0, numbers, np.stack([keys, keys], axis=1), keys),
        )
        writer.finish(root)
    return stage


def job(root: Path, *stages: str, low: float = 0.0, high: float = 1.0, **pack: Any) -> PlanJob:
    return PlanJob(
        output_dir=str(root),
        stage="00000000000000ff",
        spool_stages=stages,
        source_files=tuple(("in.jsonl",) for _ in stages),
        low=low,
        high=high,
        seed=1,
        deduplicate=bool(pack.pop("deduplicate", False)),
        pack=PackConfig(**pack),
        shard_tokens=int(pack.pop("shard_tokens", 2**26)),
    )


def bins_of(root: Path, plan_job: PlanJob) -> list[list[Sequence]]:
    """Every bin's sequences as they would be stored."""
    plan = PackPlan(stage_folder(root, plan_job.stage))
    spools = [Spool(stage_folder(root, stage)) for stage in plan_job.spool_stages]
    count = len(plan.bin_offsets) - 1
    block = gather(plan, spools, 0, count, plan_job.pack.pad_to_multiple, 9)
    out = []
    for b in range(count):
        ids = block.input_ids[block.token_offsets[b] : block.token_offsets[b + 1]].tolist()
        mask = block.loss_mask[block.token_offsets[b] : block.token_offsets[b + 1]].tolist()
        starts = block.seq_starts[block.seq_offsets[b] : block.seq_offsets[b + 1]].tolist()
        edges = [*starts, len(ids)]
        out.append([(ids[s:e], mask[s:e]) for s, e in pairwise(edges)])
    return out


def sequence(length: int, first: int, trained: slice = slice(None)) -> Sequence:
    """`length` consecutive ids whose labels in `trained` carry loss."""
    mask = np.zeros(length, int)
    mask[trained] = 1
    mask[-1] = 0
    return list(range(first, first + length)), mask.tolist()


@pytest.mark.parametrize(
    ("pack", "expected"),
    [
        ({"size": 4096}, 4097),
        ({"size": 4096, "count": "stored"}, 4096),
        ({"size": 100, "pad_to_multiple": 16}, 97),
        ({"size": 97, "count": "stored", "pad_to_multiple": 16}, 97),
        ({"size": 96, "count": "stored", "pad_to_multiple": 16}, 81),
    ],
)
def test_the_longest_sequence_that_fits(pack: dict[str, Any], expected: int) -> None:
    assert longest_stored(PackConfig(**pack)) == expected


def test_every_sequence_is_packed_once(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    rows = [
        [sequence(int(rng.integers(2, 40)), 100 * i + 40 * k) for k in range(int(rng.integers(1, 3)))]
        for i in range(200)
    ]
    stages = [spool(tmp_path, "a" * 16, rows[:120]), spool(tmp_path, "b" * 16, rows[120:])]
    plan = job(tmp_path, *stages, size=64)
    receipt = plan_packs(plan)
    packed = [tuple(map(tuple, s)) for b in bins_of(tmp_path, plan) for s in b]
    assert Counter(packed) == Counter(tuple(map(tuple, s)) for row in rows for s in row)
    assert all(sum(len(ids) - 1 for ids, _ in b) <= 64 for b in bins_of(tmp_path, plan))
    assert receipt.ledger is not None and receipt.ledger.rows_used == 200
    assert receipt.statistics["sequences"] == len(packed)


def test_overflow_truncate_keeps_what_still_trains(tmp_path: Path) -> None:
    rows = [[sequence(30, 0)], [sequence(30, 100, slice(20, None))], [sequence(11, 200)]]
    plan = job(tmp_path, spool(tmp_path, "a" * 16, rows), size=10)
    receipt = plan_packs(plan)
    kept = sorted(s for b in bins_of(tmp_path, plan) for s in b)
    assert kept == [sequence(11, 0), sequence(11, 200)]
    assert receipt.ledger is not None
    assert receipt.ledger.rejected == {"no_trained_token_in_pack_size": 1}
    assert (receipt.statistics["sequences_truncated"], receipt.statistics["sequences_dropped"]) == (1, 1)
    rejects = pq.read_table(stage_folder(tmp_path, plan.stage) / "rejects.parquet").to_pylist()
    assert [(r["source_file"], r["row"], r["reason"]) for r in rejects] == [
        ("in.jsonl", 1, "no_trained_token_in_pack_size")
    ]


def test_overflow_drop(tmp_path: Path) -> None:
    rows = [[sequence(30, 0)], [sequence(11, 200), sequence(12, 300)]]
    plan = job(tmp_path, spool(tmp_path, "a" * 16, rows), size=10, overflow="drop")
    receipt = plan_packs(plan)
    assert [s for b in bins_of(tmp_path, plan) for s in b] == [sequence(11, 200)]
    assert receipt.ledger is not None
    assert (receipt.ledger.rows_used, receipt.ledger.rejected) == (1, {"over_long": 1})
    assert receipt.statistics["sequences_dropped"] == 2


@pytest.mark.parametrize("count", ["runtime", "stored"])
def test_overflow_split_trains_every_label_once(tmp_path: Path, count: str) -> None:
    whole = sequence(95, 1000)
    plan = job(tmp_path, spool(tmp_path, "a" * 16, [[whole]]), size=10, overflow="split", count=count)
    plan_packs(plan)
    chunks = sorted(s for b in bins_of(tmp_path, plan) for s in b)
    labels = [label for ids, mask in chunks for label, m in zip(ids[1:], mask[:-1], strict=True) if m]
    assert labels == whole[0][1:]
    assert all(len(ids) <= 11 for ids, _ in chunks)


def test_split_leaves_out_chunks_that_train_nothing(tmp_path: Path) -> None:
    whole = sequence(41, 0, slice(25, 35))
    plan = job(tmp_path, spool(tmp_path, "a" * 16, [[whole]]), size=10, overflow="split")
    receipt = plan_packs(plan)
    assert sorted(s[0][0] for b in bins_of(tmp_path, plan) for s in b) == [20, 30]
    assert receipt.ledger is not None and receipt.ledger.rows_used == 1


def test_padding_aligns_runtime_lengths_and_is_never_trained(tmp_path: Path) -> None:
    rows = [[sequence(n, 100 * n)] for n in range(2, 40)]
    plan = job(tmp_path, spool(tmp_path, "a" * 16, rows), size=64, pad_to_multiple=8)
    plan_packs(plan)
    for ids, mask in (s for b in bins_of(tmp_path, plan) for s in b):
        real = [i for i in ids if i != 9]
        assert (len(ids) - 1) % 8 == 0
        assert ids == real + [9] * (len(ids) - len(real))
        assert mask == [1] * (len(real) - 1) + [0] * (len(ids) - len(real) + 1)


def test_splits_partition_the_rows_and_follow_the_shares() -> None:
    groups = np.random.default_rng(0).integers(0, 2**64, 100_000, dtype=np.uint64)
    intervals = SplitsConfig(train=0.9, valid=0.07, test=0.03).intervals()
    members = np.stack([in_split(groups, 42, low, high) for low, high in intervals.values()])
    assert (members.sum(axis=0) == 1).all()
    np.testing.assert_allclose(members.mean(axis=1), [0.9, 0.07, 0.03], atol=0.004)
    assert not np.array_equal(unit_hash(groups, 42), unit_hash(groups, 43))


def test_splits_that_add_up_only_in_decimal_still_cover_everything() -> None:
    intervals = SplitsConfig(train=0.7, valid=0.2, test=0.1).intervals()
    assert intervals["test"][1] == 1.0
    assert intervals["train"][1] == intervals["valid"][0]


def test_deduplication_keeps_the_first_over_all_parts(tmp_path: Path) -> None:
    first = spool(tmp_path, "a" * 16, [[sequence(5, 10)], [sequence(5, 20)]], digests=[1, 2])
    second = spool(tmp_path, "b" * 16, [[sequence(5, 30)], [sequence(5, 40)]], digests=[2, 3])
    plan = job(tmp_path, first, second, size=32, deduplicate=True)
    receipt = plan_packs(plan)
    assert sorted(s[0][0] for b in bins_of(tmp_path, plan) for s in b) == [10, 20, 40]
    assert receipt.ledger is not None and receipt.ledger.duplicates == 1


def test_repeated_finds_exactly_the_later_ones() -> None:
    rng = np.random.default_rng(1)
    digests = rng.integers(0, 40, (500, 2), dtype=np.uint64)
    seen: set[tuple[int, ...]] = set()
    expected = [tuple(d) in seen or seen.add(tuple(d)) for d in digests.tolist()]  # type: ignore[func-returns-value]
    assert repeated(*digests.T).tolist() == [bool(again) for again in expected]
    assert repeated(*digests[:0].T).tolist() == []


def test_shards_hold_the_bins_in_order(tmp_path: Path) -> None:
    rows = [[sequence(17, 100 * i)] for i in range(100)]
    stage = spool(tmp_path, "a" * 16, rows)
    plan = PlanJob(
        output_dir=str(tmp_path),
        stage="00000000000000ff",
        spool_stages=(stage,),
        source_files=(("in",),),
        low=0.0,
        high=1.0,
        seed=1,
        deduplicate=False,
        pack=PackConfig(size=64),
        shard_tokens=200,
    )
    receipt = plan_packs(plan)
    storage = StorageConfig(row_group_size=3)
    written = write_shards(
        WriteJob(
            output_dir=str(tmp_path),
            stage="ee",
            part=0,
            plan_stage=plan.stage,
            spool_stages=(stage,),
            first_shard=0,
            end_shard=receipt.statistics["shards"],
            pack=plan.pack,
            storage=storage,
            eos_id=None,
            tokenizer_digest="0" * 64,
            vocabulary_size=10_000,
        )
    )
    assert receipt.statistics["shards"] == len(written.files) > 3
    tables = [pq.read_table(tmp_path / record.path) for record in written.files]
    stored = [row["input_ids"] for table in tables for row in table.to_pylist()]
    assert stored == [[i for ids, _ in b for i in ids] for b in bins_of(tmp_path, plan)]
    assert all(validate_shard(tmp_path / record.path).ok for record in written.files)
    assert pq.read_metadata(tmp_path / written.files[0].path).row_group(0).num_rows == 3


def test_writing_bin_by_bin_gives_the_bytes_of_writing_blocks(tmp_path: Path) -> None:
    rows = [[sequence(20, 50 * i)] for i in range(40)]
    plan_job = job(tmp_path, spool(tmp_path, "a" * 16, rows), size=64)
    plan_packs(plan_job)
    plan, spools = (
        PackPlan(stage_folder(tmp_path, plan_job.stage)),
        [Spool(stage_folder(tmp_path, "a" * 16))],
    )
    count = len(plan.bin_offsets) - 1
    storage, metadata = (
        StorageConfig(row_group_size=4),
        ShardMetadata.made_here(plan_job.pack, "0" * 64, 5000),
    )
    with ParquetShardWriter(tmp_path / "block.parquet", storage, metadata) as writer:
        writer.write_block(gather(plan, spools, 0, count, 1, 0))
        writer.finalize()
    with ParquetShardWriter(tmp_path / "bins.parquet", storage, metadata) as writer:
        for b in range(count):
            one = gather(plan, spools, b, b + 1, 1, 0)
            writer.write_bin(b, one.input_ids, one.loss_mask, one.seq_starts)
        with pytest.raises(ValueError, match=f"expected bin {count}"):
            writer.write_bin(count + 1, one.input_ids, one.loss_mask, one.seq_starts)
        assert writer.finalize()["num_bins"] == count
    assert (tmp_path / "bins.parquet").read_bytes() == (tmp_path / "block.parquet").read_bytes()


def test_a_failed_shard_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "shard.parquet"
    with pytest.raises(RuntimeError), ParquetShardWriter(path, StorageConfig(), ShardMetadata()):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def told(root: Path, plan_job: PlanJob) -> list[tuple[str, int, str, str]]:
    """The rejected rows of a plan."""
    path = stage_folder(root, plan_job.stage) / "rejects.parquet"
    return [(r["source_file"], r["row"], r["reason"], r["detail"]) for r in pq.read_table(path).to_pylist()]


def test_the_plan_draws_from_the_seed_in_its_stage(tmp_path: Path) -> None:
    """Stored shards and their keys rest on these values: another order needs another format version."""
    first = spool(tmp_path, "a" * 16, [[sequence(n, 100 * n)] for n in (5, 4, 6, 3, 7, 2, 8, 9, 3, 5, 2, 4)])

    def plan(stage: str, order: str = "shuffled") -> tuple[list[int], list[int]]:
        plan_job = replace(job(tmp_path, first, size=10, order=order), stage=stage)
        plan_packs(plan_job)
        found = PackPlan(stage_folder(tmp_path, stage))
        return found.bin_items.tolist(), found.bin_offsets.tolist()

    assert plan("00000000000000ff") == (
        [1, 6, 3, 2, 8, 0, 4, 5, 7, 10, 11, 9],
        [0, 2, 5, 7, 10, 12],
    )
    assert plan("00000000000000ff", "decreasing") == (
        [2, 10, 9, 0, 4, 3, 7, 6, 1, 11, 5, 8],
        [0, 3, 5, 7, 9, 12],
    )
    assert plan("00000000000000fe") == (
        [4, 11, 5, 9, 10, 0, 7, 8, 1, 3, 2, 6],
        [0, 3, 6, 8, 11, 12],
    )


def test_statistics_and_files_of_a_plan(tmp_path: Path) -> None:
    # Runtime lengths 4, 3, 8 and 5, padded to multiples of 4: 4, 4, 8 and 8, stored 5, 5, 9 and 9.
    rows = [[sequence(5, 100)], [sequence(4, 200), sequence(9, 300)], [sequence(6, 400)]]
    plan = replace(job(tmp_path, spool(tmp_path, "a" * 16, rows), size=8, pad_to_multiple=4), shard_tokens=10)
    receipt = plan_packs(plan)
    assert receipt.statistics == {
        "bins": 3,
        "shards": 2,
        "sequences": 4,
        "tokens": 28,
        "padding_tokens": 4,
        "shard_bins": [0, 2, 3],
        "max_samples_per_bin": 2,
        "dataset_max_seqlen": 8,
        "min_packed_seqlen": 8,
        "packing_factor": 1.3333,
        "packing_efficiency": 100.0,
        "pack_size": 8,
        "tokens_cut": 0,
        "sequences_truncated": 0,
        "sequences_dropped": 0,
        "sequences_split": 0,
    }
    folder = stage_folder(tmp_path, plan.stage)
    arrays = {path.stem: np.load(path) for path in folder.glob("*.npy")}
    assert {name: array.dtype.name for name, array in arrays.items()} == {
        "item_spool": "int32",
        "item_start": "int64",
        "item_length": "int32",
        "bin_offsets": "int64",
        "bin_items": "int64",
        "shard_bins": "int64",
    }
    assert arrays["item_start"].tolist() == [0, 5, 9, 18]
    assert arrays["item_length"].tolist() == [5, 4, 9, 6]
    assert {record.path for record in receipt.files} == {f"stages/{plan.stage}/{name}.npy" for name in arrays}
    assert (receipt.task, receipt.stage, receipt.part) == ("plan", plan.stage, 0)


def test_a_split_without_rows_has_no_bins(tmp_path: Path) -> None:
    plan = job(tmp_path, spool(tmp_path, "a" * 16, [[sequence(5, 100)]]), low=0.0, high=0.0, size=8)
    receipt = plan_packs(plan)
    assert receipt.ledger == RowLedger()
    assert receipt.statistics == {
        "bins": 0,
        "shards": 0,
        "sequences": 0,
        "tokens": 0,
        "padding_tokens": 0,
        "shard_bins": [0],
        "max_samples_per_bin": 0,
        "dataset_max_seqlen": 0,
        "min_packed_seqlen": 0,
        "packing_factor": 0.0,
        "packing_efficiency": 0.0,
        "pack_size": 8,
        "tokens_cut": 0,
        "sequences_truncated": 0,
        "sequences_dropped": 0,
        "sequences_split": 0,
    }


@pytest.mark.parametrize(
    ("lengths", "size", "count", "statistics"),
    [
        # Runtime lengths 7, 5, 3: the 7 and the 3 share a bin of 10.
        ((8, 6, 4), 10, "runtime", {"bins": 2, "min_packed_seqlen": 5, "packing_efficiency": 75.0}),
        # Stored, 8 and 4 do not share one, 6 and 4 do.
        ((8, 6, 4), 10, "stored", {"bins": 2, "min_packed_seqlen": 7, "packing_efficiency": 75.0}),
        ((8, 6, 4), 15, "runtime", {"bins": 1, "max_samples_per_bin": 3, "packing_factor": 3.0}),
        ((8, 6, 4), 7, "runtime", {"bins": 3, "max_samples_per_bin": 1, "packing_efficiency": 71.4286}),
    ],
)
def test_what_fills_a_bin(
    tmp_path: Path, lengths: tuple[int, ...], size: int, count: str, statistics: dict[str, Any]
) -> None:
    rows = [[sequence(length, 100)] for length in lengths]
    receipt = plan_packs(
        job(tmp_path, spool(tmp_path, "a" * 16, rows), size=size, count=count, order="decreasing")
    )
    assert {name: receipt.statistics[name] for name in statistics} == statistics
    assert receipt.statistics["dataset_max_seqlen"] == 7


@pytest.mark.parametrize(
    ("shard_tokens", "shard_bins"),
    [
        (1, [0, 1, 2, 3, 4]),
        (11, [0, 1, 2, 3, 4]),
        # The bin that brings a shard to its tokens, or beyond them, is its last.
        (12, [0, 2, 4]),
        (22, [0, 2, 4]),
        (23, [0, 3, 4]),
        (44, [0, 4]),
        (45, [0, 4]),
    ],
)
def test_the_bin_that_fills_a_shard_closes_it(
    tmp_path: Path, shard_tokens: int, shard_bins: list[int]
) -> None:
    stage = spool(tmp_path, "a" * 16, [[sequence(11, 100)]] * 4)
    receipt = plan_packs(replace(job(tmp_path, stage, size=10), shard_tokens=shard_tokens))
    assert receipt.statistics["shard_bins"] == shard_bins
    assert receipt.statistics["shards"] == len(shard_bins) - 1


def test_every_lost_row_is_named_with_its_file(tmp_path: Path) -> None:
    first = spool(tmp_path, "a" * 16, [[sequence(5, 10)], [sequence(30, 20)]])
    second = spool(
        tmp_path, "b" * 16, [[sequence(30, 30), sequence(31, 30)], [sequence(5, 40), sequence(30, 40)]]
    )
    plan = replace(job(tmp_path, first, second, size=10, overflow="drop"), source_files=(("one",), ("two",)))
    receipt = plan_packs(plan)
    assert told(tmp_path, plan) == [
        ("one", 1, "over_long", "pack.size is 10"),
        ("two", 0, "over_long", "pack.size is 10"),
    ]
    # The last row keeps one of its sequences, so it is used.
    assert receipt.ledger == RowLedger(rows_in=4, rows_used=2, rejected={"over_long": 2})
    assert receipt.statistics["sequences_dropped"] == 4
    assert receipt.statistics["sequences"] == 2
    assert [record.path for record in receipt.files][-1] == f"stages/{plan.stage}/rejects.parquet"


def test_a_row_is_counted_in_the_split_it_falls_into(tmp_path: Path) -> None:
    digests = [7, 7, 8, 9, 9]
    first = spool(tmp_path, "a" * 16, [[sequence(5, 10 * n)] for n in range(5)], digests=digests)
    second = spool(tmp_path, "b" * 16, [[sequence(30, 100)], [sequence(5, 110)]], digests=[5, 8])
    share = unit_hash(np.array([7, 8, 9, 5], np.uint64), 1)
    edges = [0.0, *sorted(share.tolist()), 1.0]
    ledgers = []
    for low, high in pairwise(edges):
        plan = job(tmp_path, first, second, low=low, high=high, size=10, overflow="drop", deduplicate=True)
        ledgers.append(plan_packs(plan).ledger)
    # Each group's share is the first of its interval; below the smallest there is nothing.
    expected = {
        7: RowLedger(rows_in=2, rows_used=1, duplicates=1),
        8: RowLedger(rows_in=2, rows_used=1, duplicates=1),
        9: RowLedger(rows_in=2, rows_used=1, duplicates=1),
        5: RowLedger(rows_in=1, rejected={"over_long": 1}),
    }
    groups = [7, 8, 9, 5]
    assert ledgers == [RowLedger(), *(expected[groups[place]] for place in np.argsort(share).tolist())]


@pytest.mark.parametrize(
    ("length", "trained", "overflow", "kept"),
    [
        # Just as long as a bin takes: nothing is cut, and nothing is looked at.
        (11, slice(0, 0), "truncate", [(0, 11)]),
        (11, slice(0, 0), "split", [(0, 11)]),
        # One too long: the label that is cut off is the first of the next chunk.
        (12, slice(None), "truncate", [(0, 11)]),
        (12, slice(None), "split", [(0, 11), (10, 2)]),
        (12, slice(10, 11), "truncate", []),
        (12, slice(10, 11), "split", [(10, 2)]),
        (12, slice(9, 10), "truncate", [(0, 11)]),
        (12, slice(9, 10), "split", [(0, 11)]),
        (21, slice(None), "split", [(0, 11), (10, 11)]),
        (22, slice(None), "split", [(0, 11), (10, 11), (20, 2)]),
        (22, slice(10, 20), "split", [(10, 11)]),
    ],
)
def test_what_is_left_of_a_long_sequence(
    tmp_path: Path, length: int, trained: slice, overflow: str, kept: list[tuple[int, int]]
) -> None:
    # Between two others, so that a wrong offset shows.
    rows = [[sequence(3, 500)], [sequence(length, 0, trained)], [sequence(4, 600)]]
    plan = job(tmp_path, spool(tmp_path, "a" * 16, rows), size=10, overflow=overflow)
    receipt = plan_packs(plan)
    found = sorted((ids[0], len(ids)) for b in bins_of(tmp_path, plan) for ids, _ in b)
    assert found == [*kept, (500, 3), (600, 4)]
    # A sequence is cut if something of it is left, and dropped if nothing is.
    is_cut = int(length > 11 and bool(kept))
    assert (
        receipt.statistics.items()
        >= {
            "sequences_truncated": is_cut if overflow == "truncate" else 0,
            "sequences_split": is_cut if overflow == "split" else 0,
            "sequences_dropped": int(not kept),
            "tokens_cut": length
            - len({place for start, size in kept for place in range(start, start + size)}),
        }.items()
    )
    assert receipt.ledger is not None and receipt.ledger.rows_used == 2 + bool(kept)
