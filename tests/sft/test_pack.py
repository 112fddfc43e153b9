"""From spools to shards: deduplication, the overflow rule, padding, bins, provenance; nothing lost on the way."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from schemas.run import Receipt, RowLedger
from schemas.sft import PackConfig, StorageConfig
from tasks.packing.arrays import repeated
from tasks.run.layout import stage_folder
from tasks.sft.order.fit import longest_stored
from tasks.sft.order.positions import RING, rotation
from tasks.sft.order.spool import Rows, TokenSpoolWriter
from tasks.sft.pack import PackJob, pack_shards
from tasks.sft.packed import PackedSplit
from tasks.sft.shards.parquet_writer import ParquetShardWriter
from tasks.sft.shards.shard import ShardMetadata
from tasks.sft.shards.validate import validate_shard

Sequence = tuple[list[int], list[int]]
CUT = "c" * 16


def spool(root: Path, stage: str, rows: list[list[Sequence]], digests: list[int] | None = None) -> str:
    """A spool whose row i has the given sequences of (ids, stored mask)."""
    sequences = [sequence for row in rows for sequence in row]
    numbers = np.arange(len(rows))
    keys = np.array(digests if digests is not None else numbers + 1000 * (ord(stage[0]) - 96), np.uint64)
    counts = [len(row) for row in rows]
    with TokenSpoolWriter(stage_folder(root, stage)) as writer:
        writer.append(
            np.array([i for ids, _ in sequences for i in ids], np.int32),
            # The stored mask is of the next token.
            np.array([m for _, mask in sequences for m in [0, *mask[:-1]]], np.uint8),
            np.array([len(ids) for ids, _ in sequences], np.int64),
            np.repeat(numbers, counts).astype(np.int32),
            np.array([turn for count in counts for turn in range(count)], np.int64),
            Rows(numbers * 0, numbers, np.stack([keys << np.uint64(40), keys], axis=1), None),
        )
        writer.finish(root)
    return stage


def job(root: Path, *stages: str, cuts: list[tuple[int, int]] | None = None, **pack: Any) -> PackJob:
    """The job of all shards of a split: one, or those of the given rotated positions."""
    cuts = [(0, RING)] if cuts is None else cuts
    folder = stage_folder(root, CUT)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cuts.json").write_text(json.dumps({"train": [cuts[0][0], *(high for _, high in cuts)]}))
    return PackJob(
        output_dir=str(root),
        stage="00000000000000ff",
        cut_stage=CUT,
        spool_stages=stages,
        source_files=tuple(("in.jsonl",) for _ in stages),
        split="train",
        packing="e" * 16,
        first_shard=0,
        end_shard=len(cuts),
        seed=1,
        grouped=False,
        deduplicate=bool(pack.pop("deduplicate", False)),
        pack=PackConfig(**pack),
        storage=StorageConfig(row_group_size=3),
        eos_id=9,
        tokenizer_digest="0" * 64,
        vocabulary_size=10_000,
    )


def statistics_of(receipt: Receipt, size: int) -> dict[str, Any]:
    return PackedSplit("a", 1.0, "hash", "train", size, (receipt,)).statistics


def shards_of(root: Path, receipt: Receipt) -> list[Path]:
    return [root / record.path for record in receipt.files if Path(record.path).name.startswith("shard_")]


def bins_of(root: Path, receipt: Receipt) -> list[list[Sequence]]:
    """Every bin's sequences as they are stored."""
    out = []
    for path in shards_of(root, receipt):
        for row in pq.read_table(path).to_pylist():
            edges = [*row["seq_start_id"], len(row["input_ids"])]
            out.append([(row["input_ids"][s:e], row["loss_mask"][s:e]) for s, e in pairwise(edges)])
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
    receipt = pack_shards(plan)
    packed = [tuple(map(tuple, s)) for b in bins_of(tmp_path, receipt) for s in b]
    assert Counter(packed) == Counter(tuple(map(tuple, s)) for row in rows for s in row)
    assert all(sum(len(ids) - 1 for ids, _ in b) <= 64 for b in bins_of(tmp_path, receipt))
    assert receipt.ledger is not None and receipt.ledger.rows_used == 200
    assert statistics_of(receipt, 64)["sequences"] == len(packed)


def test_overflow_truncate_keeps_what_still_trains(tmp_path: Path) -> None:
    rows = [[sequence(30, 0)], [sequence(30, 100, slice(20, None))], [sequence(11, 200)]]
    plan = job(tmp_path, spool(tmp_path, "a" * 16, rows), size=10)
    receipt = pack_shards(plan)
    kept = sorted(s for b in bins_of(tmp_path, receipt) for s in b)
    assert kept == [sequence(11, 0), sequence(11, 200)]
    assert receipt.ledger is not None
    assert receipt.ledger.rejected == {"no_trained_token_in_pack_size": 1}
    assert (receipt.statistics["sequences_truncated"], receipt.statistics["sequences_dropped"]) == (1, 1)
    rejects = pq.read_table(stage_folder(tmp_path, plan.stage) / "rejects-000000.parquet").to_pylist()
    assert [(r["source_file"], r["row"], r["reason"]) for r in rejects] == [
        ("in.jsonl", 1, "no_trained_token_in_pack_size")
    ]


def test_overflow_drop(tmp_path: Path) -> None:
    rows = [[sequence(30, 0)], [sequence(11, 200), sequence(12, 300)]]
    plan = job(tmp_path, spool(tmp_path, "a" * 16, rows), size=10, overflow="drop")
    receipt = pack_shards(plan)
    assert [s for b in bins_of(tmp_path, receipt) for s in b] == [sequence(11, 200)]
    assert receipt.ledger is not None
    assert (receipt.ledger.rows_used, receipt.ledger.rejected) == (1, {"over_long": 1})
    assert receipt.statistics["sequences_dropped"] == 2


@pytest.mark.parametrize("count", ["runtime", "stored"])
def test_overflow_split_trains_every_label_once(tmp_path: Path, count: str) -> None:
    whole = sequence(95, 1000)
    plan = job(tmp_path, spool(tmp_path, "a" * 16, [[whole]]), size=10, overflow="split", count=count)
    receipt = pack_shards(plan)
    chunks = sorted(s for b in bins_of(tmp_path, receipt) for s in b)
    labels = [label for ids, mask in chunks for label, m in zip(ids[1:], mask[:-1], strict=True) if m]
    assert labels == whole[0][1:]
    assert all(len(ids) <= 11 for ids, _ in chunks)


def test_split_leaves_out_chunks_that_train_nothing(tmp_path: Path) -> None:
    whole = sequence(41, 0, slice(25, 35))
    plan = job(tmp_path, spool(tmp_path, "a" * 16, [[whole]]), size=10, overflow="split")
    receipt = pack_shards(plan)
    assert sorted(s[0][0] for b in bins_of(tmp_path, receipt) for s in b) == [20, 30]
    assert receipt.ledger is not None and receipt.ledger.rows_used == 1


def test_padding_aligns_runtime_lengths_and_is_never_trained(tmp_path: Path) -> None:
    rows = [[sequence(n, 100 * n)] for n in range(2, 40)]
    plan = job(tmp_path, spool(tmp_path, "a" * 16, rows), size=64, pad_to_multiple=8)
    receipt = pack_shards(plan)
    for ids, mask in (s for b in bins_of(tmp_path, receipt) for s in b):
        real = [i for i in ids if i != 9]
        assert (len(ids) - 1) % 8 == 0
        assert ids == real + [9] * (len(ids) - len(real))
        assert mask == [1] * (len(real) - 1) + [0] * (len(ids) - len(real) + 1)


def test_deduplication_keeps_the_first_over_all_parts(tmp_path: Path) -> None:
    first = spool(tmp_path, "a" * 16, [[sequence(5, 10)], [sequence(5, 20)]], digests=[1, 2])
    second = spool(tmp_path, "b" * 16, [[sequence(5, 30)], [sequence(5, 40)]], digests=[2, 3])
    plan = job(tmp_path, first, second, size=32, deduplicate=True)
    receipt = pack_shards(plan)
    assert sorted(s[0][0] for b in bins_of(tmp_path, receipt) for s in b) == [10, 20, 40]
    assert receipt.ledger is not None and receipt.ledger.duplicates == 1


def test_repeated_finds_exactly_the_later_ones() -> None:
    rng = np.random.default_rng(1)
    digests = rng.integers(0, 40, (500, 2), dtype=np.uint64)
    seen: set[tuple[int, ...]] = set()
    expected = [tuple(d) in seen or seen.add(tuple(d)) for d in digests.tolist()]  # type: ignore[func-returns-value]
    assert repeated(*digests.T).tolist() == [bool(again) for again in expected]
    assert repeated(*digests[:0].T).tolist() == []


def test_a_failed_shard_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "shard.parquet"
    with pytest.raises(RuntimeError), ParquetShardWriter(path, StorageConfig(), ShardMetadata()):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def told(root: Path, plan_job: PackJob) -> list[tuple[str, int, str, str]]:
    """The rejected rows of a plan."""
    path = stage_folder(root, plan_job.stage) / "rejects-000000.parquet"
    return [(r["source_file"], r["row"], r["reason"], r["detail"]) for r in pq.read_table(path).to_pylist()]


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
    receipt = pack_shards(
        job(tmp_path, spool(tmp_path, "a" * 16, rows), size=size, count=count, order="decreasing")
    )
    found = statistics_of(receipt, size)
    assert {name: found[name] for name in statistics} == statistics
    assert found["dataset_max_seqlen"] == 7


def test_every_lost_row_is_named_with_its_file(tmp_path: Path) -> None:
    first = spool(tmp_path, "a" * 16, [[sequence(5, 10)], [sequence(30, 20)]])
    second = spool(
        tmp_path, "b" * 16, [[sequence(30, 30), sequence(31, 30)], [sequence(5, 40), sequence(30, 40)]]
    )
    plan = replace(job(tmp_path, first, second, size=10, overflow="drop"), source_files=(("one",), ("two",)))
    receipt = pack_shards(plan)
    assert told(tmp_path, plan) == [
        ("one", 1, "over_long", "pack.size is 10"),
        ("two", 0, "over_long", "pack.size is 10"),
    ]
    # The last row keeps one of its sequences, so it is used.
    assert receipt.ledger == RowLedger(rows_in=4, rows_used=2, rejected={"over_long": 2})
    assert receipt.statistics["sequences_dropped"] == 4
    assert statistics_of(receipt, 10)["sequences"] == 2
    assert [record.path for record in receipt.files][-1] == f"stages/{plan.stage}/rejects-000000.parquet"


def test_a_row_is_counted_in_the_split_it_falls_into(tmp_path: Path) -> None:
    digests = [7, 7, 8, 9, 9]
    first = spool(tmp_path, "a" * 16, [[sequence(5, 10 * n)] for n in range(5)], digests=digests)
    second = spool(tmp_path, "b" * 16, [[sequence(30, 100)], [sequence(5, 110)]], digests=[5, 8])
    # The test's digests lie at 2**40 times their number, which the seed rotates.
    turn = rotation(1, False)
    edges = sorted([0, RING, *(((n << 40) + turn) % RING for n in (5, 7, 8, 9))])
    ledgers = []
    for low, high in pairwise(edges):
        cut = job(tmp_path, first, second, cuts=[(low, high)], size=10, overflow="drop", deduplicate=True)
        ledgers.append(pack_shards(cut).ledger)
    expected = {
        7: RowLedger(rows_in=2, rows_used=1, duplicates=1),
        8: RowLedger(rows_in=2, rows_used=1, duplicates=1),
        9: RowLedger(rows_in=2, rows_used=1, duplicates=1),
        5: RowLedger(rows_in=1, rejected={"over_long": 1}),
    }
    assert ledgers == [RowLedger(), expected[5], expected[7], expected[8], expected[9]]


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
@pytest.mark.parametrize("block", [1 << 20, 1])
def test_what_is_left_of_a_long_sequence(
    tmp_path: Path,
    length: int,
    trained: slice,
    overflow: str,
    kept: list[tuple[int, int]],
    block: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # However many tokens are looked at together.
    monkeypatch.setattr("tasks.sft.pack._BLOCK_TOKENS", block)
    # Between two others, so that a wrong offset shows.
    rows = [[sequence(3, 500)], [sequence(length, 0, trained)], [sequence(4, 600)]]
    plan = job(tmp_path, spool(tmp_path, "a" * 16, rows), size=10, overflow=overflow)
    receipt = pack_shards(plan)
    found = sorted((ids[0], len(ids)) for b in bins_of(tmp_path, receipt) for ids, _ in b)
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


def test_shards_are_the_sequences_of_their_positions(tmp_path: Path) -> None:
    rows = [[sequence(17, 100 * i)] for i in range(100)]
    stage = spool(tmp_path, "a" * 16, rows)
    turn = rotation(1, False)
    # The test's row i lies at (1000 + i) * 2**40.
    edges = [0, *(((1000 + n << 40) + turn) % RING for n in (10, 10, 55, 100)), RING]
    cuts = list(pairwise(edges))
    receipt = pack_shards(job(tmp_path, stage, cuts=cuts, size=64))
    names = [path.name for path in shards_of(tmp_path, receipt)]
    # What has no sequences is no file.
    assert names == ["shard_000000.parquet", "shard_000002.parquet", "shard_000003.parquet"]
    assert [shard["sequences"] for shard in receipt.statistics["shards"]] == [10, 45, 45]
    for path, some in zip(
        shards_of(tmp_path, receipt), (range(10), range(10, 55), range(55, 100)), strict=True
    ):
        firsts = [row["input_ids"][s] for row in pq.read_table(path).to_pylist() for s in row["seq_start_id"]]
        assert sorted(firsts) == [100 * i for i in some]
        assert validate_shard(path).ok
        assert pq.read_metadata(path).row_group(0).num_rows == 3


def test_shards_do_not_depend_on_the_jobs_that_make_them(tmp_path: Path) -> None:
    stage = spool(tmp_path, "a" * 16, [[sequence(17, 100 * i)] for i in range(60)])
    turn = rotation(1, False)
    cuts = list(pairwise([0, *(((1000 + n << 40) + turn) % RING for n in (20, 40)), RING]))
    whole = job(tmp_path, stage, cuts=cuts, size=64)
    expected = {path.name: path.read_bytes() for path in shards_of(tmp_path, pack_shards(whole))}
    for part, (first, end) in enumerate(((0, 1), (1, 3))):
        some = replace(whole, part=part, first_shard=first, end_shard=end)
        for path in shards_of(tmp_path, pack_shards(some)):
            assert path.read_bytes() == expected.pop(path.name)
    assert not expected


def test_every_sequence_says_which_row_it_came_from(tmp_path: Path) -> None:
    rows = [[sequence(30, 100), sequence(4, 200)], [sequence(5, 300)], [sequence(12, 400)]]
    plan = job(tmp_path, spool(tmp_path, "a" * 16, rows), size=12, overflow="split", pad_to_multiple=4)
    receipt = pack_shards(plan)
    [shard] = shards_of(tmp_path, receipt)
    bins = pq.read_table(shard).to_pylist()
    origin = pq.read_table(shard.with_name("provenance-000000.parquet")).to_pylist()
    assert [(o["bin"], o["start"]) for o in origin] == [
        (number, start) for number, row in enumerate(bins) for start in row["seq_start_id"]
    ]
    for one in origin:
        ids = rows[one["row"]][one["turn"]][0]
        held = bins[one["bin"]]["input_ids"][one["start"] : one["stop"]]
        assert held == ids[one["skipped"] :][: len(held)] and one["file"] == "in.jsonl"
    assert len(origin) == 3 + 1 + 1 + 1


def test_statistics_and_files_of_shards(tmp_path: Path) -> None:
    # Runtime lengths 4, 3, 8 and 5, padded to multiples of 4: 4, 4, 8 and 8, stored 5, 5, 9 and 9.
    rows = [[sequence(5, 100)], [sequence(4, 200), sequence(9, 300)], [sequence(6, 400)]]
    plan = job(tmp_path, spool(tmp_path, "a" * 16, rows), size=8, pad_to_multiple=4)
    receipt = pack_shards(plan)
    assert statistics_of(receipt, 8) == {
        "bins": 3,
        "shards": 1,
        "sequences": 4,
        "tokens": 28,
        "padding_tokens": 4,
        "trained_tokens": 4 + 3 + 8 + 5,
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
    names = {Path(record.path).name for record in receipt.files}
    assert names == {
        "shard_000000.parquet", "provenance-000000.parquet", "lengths-000000.npy", "fills-000000.npy",
    }  # fmt: skip
    folder = stage_folder(tmp_path, plan.stage)
    assert np.load(folder / "lengths-000000.npy").tolist() == [[4, 1], [5, 1], [6, 1], [9, 1]]
    assert np.load(folder / "fills-000000.npy").tolist() == [[8, 3]]
    assert (receipt.task, receipt.stage, receipt.part) == ("pack", plan.stage, 0)


def test_an_interval_without_rows_has_no_shard(tmp_path: Path) -> None:
    stage = spool(tmp_path, "a" * 16, [[sequence(5, 100)]])
    receipt = pack_shards(job(tmp_path, stage, cuts=[(5, 5)], size=8))
    assert receipt.ledger == RowLedger() and receipt.statistics["shards"] == []
    assert statistics_of(receipt, 8)["bins"] == 0


def test_writing_bin_by_bin_gives_the_bytes_of_writing_blocks(tmp_path: Path) -> None:
    plan = job(tmp_path, spool(tmp_path, "a" * 16, [[sequence(20, 50 * i)] for i in range(40)]), size=64)
    receipt = pack_shards(plan)
    [shard] = shards_of(tmp_path, receipt)
    metadata = ShardMetadata.made_here(plan.pack, plan.tokenizer_digest, plan.vocabulary_size)
    rows = pq.read_table(shard).to_pylist()
    with ParquetShardWriter(tmp_path / "bins.parquet", plan.storage, metadata) as writer:
        for number, row in enumerate(rows):
            writer.write_bin(number, row["input_ids"], row["loss_mask"], row["seq_start_id"])
        with pytest.raises(ValueError, match=f"expected bin {len(rows)}"):
            writer.write_bin(len(rows) + 1, row["input_ids"], row["loss_mask"], row["seq_start_id"])
        assert writer.finalize()["num_bins"] == len(rows)
    assert (tmp_path / "bins.parquet").read_bytes() == shard.read_bytes()
