"""Write packed shards: gather the bins of a plan from the spools, block by block."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from schemas.errors import ConfigError
from schemas.run import FileRecord, Receipt
from schemas.sft import Count, PackConfig, StorageConfig, StorageFormat
from tasks.packing.arrays import lengths_to_offsets
from tasks.run.contract import Job
from tasks.run.layout import stage_folder
from tasks.sft.gather import PackPlan, gather
from tasks.sft.plan import padded_length
from tasks.sft.shards.shard import ShardMetadata
from tasks.sft.shards.writers import open_writer, shard_name
from tasks.sft.spool import Spool, open_spools

# About 16 MB of tokens and mask per block: large enough to amortise Python, small enough to stay in memory.
_BLOCK_TOKENS = 1 << 22


@dataclass(frozen=True, kw_only=True)
class WriteJob(Job):
    """Consecutive shards of one data set and split.

    Attributes:
        plan_stage: stage hash of the plan.
        spool_stages: stage hashes of the spools the plan refers to.
        first_shard, end_shard: which shards of the plan.
        eos_id: the padding token; needed only when `pack.pad_to_multiple` is above 1.
    """

    task: ClassVar[str] = "write"
    plan_stage: str
    spool_stages: tuple[str, ...]
    first_shard: int
    end_shard: int
    pack: PackConfig
    storage: StorageConfig
    eos_id: int | None
    tokenizer_digest: str
    vocabulary_size: int
    label: str = ""


def write_shards(job: WriteJob) -> Receipt:
    """Write the shards of `job` into its stage folder.

    Raises:
        ConfigError: padding is requested, but the tokenizer has no end-of-sequence token.
        StorageError: a shard cannot be written.
    """
    if job.pack.pad_to_multiple > 1 and job.eos_id is None:
        raise ConfigError(
            f"padding to a multiple of {job.pack.pad_to_multiple} needs an end-of-sequence token, but the "
            "tokenizer has none; set eos_token in its tokenizer_config.json or pad_to_multiple: 1",
            where="pack.pad_to_multiple",
        )
    root = job.root
    folder = job.folder
    plan = PackPlan(stage_folder(root, job.plan_stage))
    records: list[FileRecord] = []
    totals = {"bins": 0, "sequences": 0, "tokens": 0, "trained_tokens": 0}
    with open_spools([stage_folder(root, stage) for stage in job.spool_stages]) as spools:
        for shard in range(job.first_shard, job.end_shard):
            written, counts = _write_shard(job, plan, spools, shard, folder)
            records += written
            totals = {name: totals[name] + counts[name] for name in totals}
    statistics: dict[str, Any] = {**totals, "first_shard": job.first_shard, "end_shard": job.end_shard}
    return job.receipt(records, statistics=statistics)


def _write_shard(
    job: WriteJob, plan: PackPlan, spools: list[Spool], shard: int, folder: Path
) -> tuple[tuple[FileRecord, ...], dict[str, int]]:
    path = folder / shard_name(shard, job.storage.format)
    metadata = ShardMetadata.made_here(job.pack, job.tokenizer_digest, job.vocabulary_size)
    first, end = int(plan.shard_bins[shard]), int(plan.shard_bins[shard + 1])
    rows = job.storage.row_group_size
    # Blocks are whole row groups, so that the block size never affects the file.
    block_bins = max(1, _BLOCK_TOKENS // (job.pack.size * rows)) * rows
    counts = {"bins": end - first, "sequences": 0, "tokens": 0, "trained_tokens": 0}
    width = row_width(plan, job.pack, first, end) if job.storage.format is StorageFormat.MEMMAP else 0
    with open_writer(path, job.storage, metadata, end - first, width) as writer:
        for start in range(first, end, block_bins):
            stop = min(start + block_bins, end)
            bins = gather(plan, spools, start, stop, job.pack.pad_to_multiple, job.eos_id or 0)
            writer.write_block(bins)
            counts["sequences"] += len(bins.seq_starts)
            counts["tokens"] += len(bins.input_ids)
            counts["trained_tokens"] += int(bins.loss_mask.sum(dtype="int64"))
        writer.finalize()
    return writer.records(Path(job.output_dir)), counts


def row_width(plan: PackPlan, pack: PackConfig, first_bin: int, end_bin: int) -> int:
    """Return the tokens for which a memmap row has room: the pack size, or the longest bin as stored.

    With runtime counts, a bin of n sequences may store n tokens more than the pack size.
    """
    if pack.count is Count.STORED:
        return pack.size
    offsets = plan.bin_offsets[first_bin : end_bin + 1].astype(np.int64)
    items = plan.bin_items[offsets[0] : offsets[-1]]
    stored = padded_length(plan.item_length[items].astype(np.int64), pack.pad_to_multiple)
    ends = lengths_to_offsets(stored)[offsets - offsets[0]]
    return int(np.diff(ends).max(initial=0))
