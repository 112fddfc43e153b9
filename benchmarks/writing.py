"""Materialise and write: from token spool and pack plan to Parquet shards, against the list-of-arrays writer.

    python -m benchmarks.writing  # about two minutes, on one core, 1.5 GB in the folder for temporary files

Ours is the whole task: gather, Parquet, SHA-256, fsync, receipt. The other builds an array for each bin,
appends it to a list and hands the lists to `pa.table`, a table for each file; same codec, same row groups,
same files, no checksum and no fsync. It runs as pyarrow comes, and once more with our column encodings.
Sequences are lognormal, median 350, sigma 1; ids are drawn by rank, Zipf-like, from a vocabulary of 128k.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import in_turn, median, ratio, report
from benchmarks.packing import lognormal_lengths
from schemas.sft import PackConfig, StorageConfig
from tasks.run.layout import stage_folder
from tasks.sft.gather import PackPlan
from tasks.sft.plan import PlanJob, plan_packs
from tasks.sft.shards.parquet_writer import PACKED_FIELDS
from tasks.sft.shards.writers import shard_name
from tasks.sft.spool import Rows, Spool, SpoolWriter
from tasks.sft.write import WriteJob, write_shards

SEQUENCES, SIZE, VOCABULARY = 200_000, 4096, 128_000
REPEATS = 5
TARGET = 1.8
SPOOL, PLAN, OURS = "a" * 16, "b" * 16, "c" * 16
PACK = PackConfig(size=SIZE)
STORAGE = StorageConfig()


def write_spool(root: Path, batch: int = 10_000) -> None:
    """A spool of random sequences: a third of each is prompt, the rest is trained."""
    rng = np.random.default_rng(0)
    all_lengths = lognormal_lengths(SEQUENCES, SIZE)
    with SpoolWriter(stage_folder(root, SPOOL)) as spool:
        for first in range(0, SEQUENCES, batch):
            lengths = np.maximum(all_lengths[first : first + batch], 2).astype(np.int64)
            # Log-uniform ranks: the k-th most frequent id comes with a share of about 1/k.
            ids = np.exp(rng.random(int(lengths.sum()), np.float32) * np.float32(np.log(VOCABULARY)))
            starts = np.cumsum(lengths) - lengths
            within = np.arange(len(ids)) - np.repeat(starts, lengths)
            mask = (within >= np.repeat(lengths // 3, lengths)).astype(np.uint8)
            mask[starts + lengths - 1] = 0
            numbers = np.arange(first, first + len(lengths))
            digests = rng.integers(0, 2**64, (len(lengths), 2), np.uint64)
            rows = Rows(np.zeros(len(lengths), np.int32), numbers, digests, digests[:, 0])
            spool.append(
                ids.astype(np.int32) - 1, mask, lengths, np.arange(len(lengths), dtype=np.int32), rows
            )
        spool.finish(root)


def plan_job(root: Path) -> PlanJob:
    return PlanJob(
        output_dir=str(root), stage=PLAN, spool_stages=(SPOOL,), source_files=(("rows",),), low=0.0, high=1.0,
        seed=0, deduplicate=False, pack=PACK, shard_tokens=STORAGE.shard_tokens,
    )  # fmt: skip


def write_job(root: Path, shards: int) -> WriteJob:
    return WriteJob(
        output_dir=str(root), stage=OURS, part=0, plan_stage=PLAN, spool_stages=(SPOOL,), first_shard=0,
        end_shard=shards, pack=PACK, storage=STORAGE, eos_id=None, tokenizer_digest="0" * 64,
        vocabulary_size=VOCABULARY,
    )  # fmt: skip


def list_of_arrays(root: Path, folder: Path, use_dictionary: bool | list[str]) -> None:
    """Each shard as lists of one array a bin."""
    plan, spool = PackPlan(stage_folder(root, PLAN)), Spool(stage_folder(root, SPOOL))
    for shard in range(len(plan.shard_bins) - 1):
        input_ids, loss_mask, seq_start_id = [], [], []
        for index in range(plan.shard_bins[shard], plan.shard_bins[shard + 1]):
            items = plan.bin_items[plan.bin_offsets[index] : plan.bin_offsets[index + 1]]
            lengths = plan.item_length[items]
            spans = [
                slice(start, start + length)
                for start, length in zip(plan.item_start[items], lengths, strict=True)
            ]
            input_ids.append(np.concatenate([spool.tokens[span] for span in spans]))
            loss_mask.append(np.concatenate([spool.loss_mask[span] for span in spans]))
            seq_start_id.append((np.cumsum(lengths) - lengths).astype(np.int32))
        columns = {"input_ids": input_ids, "loss_mask": loss_mask, "seq_start_id": seq_start_id}
        table = pa.table(columns, schema=pa.schema(list(PACKED_FIELDS.items())))
        pq.write_table(
            table,
            folder / shard_name(shard, STORAGE.format),
            row_group_size=STORAGE.row_group_size,
            compression=STORAGE.compression.value,
            compression_level=STORAGE.compression_level,
            use_dictionary=use_dictionary,
        )


def assert_same_rows(ours: Path, theirs: Path) -> None:
    names = sorted(path.name for path in ours.glob("*.parquet"))
    assert names == sorted(path.name for path in theirs.glob("*.parquet"))
    for name in names:
        assert pq.read_table(ours / name).equals(pq.read_table(theirs / name)), name


def compare(root: Path) -> None:
    write_spool(root)
    statistics_of_plan = plan_packs(plan_job(root)).statistics
    ours = partial(write_shards, write_job(root, statistics_of_plan["shards"]))
    as_is, encoded = root / "as-is", root / "encoded"
    as_is.mkdir()
    encoded.mkdir()
    contenders = {
        "ours": ours,
        "as_is": partial(list_of_arrays, root, as_is, True),
        "encoded": partial(list_of_arrays, root, encoded, ["loss_mask.list.element"]),
    }
    times = in_turn(REPEATS, **contenders)
    for folder in (as_is, encoded):
        assert_same_rows(stage_folder(root, OURS), folder)
    tokens = statistics_of_plan["tokens"]
    labels = {"ours": "ours", "as_is": "list of arrays", "encoded": "list of arrays, our encodings"}
    for name, label in labels.items():
        report(f"{label}: {tokens:,} tokens", f"{median(times[name]).wall:.2f} s")
    for name in ("as_is", "encoded"):
        gain = ratio(times, name, "ours")
        target = (f">= {TARGET}x", gain.wall >= TARGET) if name == "as_is" else ()
        report(f"{labels[name]} / ours", f"{gain.wall:.2f}x", *target)
        report(f"{labels[name]} / ours, in processor time", f"{gain.cpu:.2f}x")


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    root = Path(tempfile.mkdtemp(prefix="gristmill-bench-"))
    try:
        compare(root)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
