"""The jobs of a pack-sft run, stage by stage, and the hashes that key each stage.

Stage keys form a chain: a part's spool depends on its piece of the input and the tokenizing settings; a plan on
its spools and the packing settings; shards on their plan and the storage settings. Each hashes only its own
fields, so a new pack size never tokenizes again, and a new blend weight rewrites only small files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from schemas.run import Receipt
from schemas.sft import DatasetConfig, PackSftConfig
from tasks.inputs.segments import Segment, cut, group, part_bytes_for
from tasks.inputs.sizing import batch_size
from tasks.run.contract import absolute_root
from tasks.sft.identity import DOMAIN, DatasetSource, PackIdentity, tokenizer_fields
from tasks.sft.plan import PlanJob
from tasks.sft.screen import ScreenJob
from tasks.sft.tokenize import TokenizeJob
from tasks.sft.write import WriteJob

# With more task runs than this, Prefect's overhead becomes noticeable; several shards then share a task.
_MAX_WRITE_TASKS = 128


def tokenize_jobs(config: PackSftConfig, identity: PackIdentity) -> dict[str, list[TokenizeJob]]:
    """Create the jobs for the parts of each data set, by name.

    Raises:
        InputError: a Parquet footer is broken.
    """
    return {entry.dataset.name: _tokenize_dataset(config, identity, entry) for entry in identity.sources}


def _tokenize_dataset(
    config: PackSftConfig, identity: PackIdentity, entry: DatasetSource
) -> list[TokenizeJob]:
    part_bytes = part_bytes_for(sum(file.bytes for file in entry.files))
    digests = {file.name: digest for file, digest in zip(entry.files, entry.digests, strict=True)}
    shared = {
        "dataset": entry.dataset.hash_fields(["dialect", "fields", "where"]),
        "tokenizer": tokenizer_fields(identity.tokenizer),
        "settings": config.tokenizer.hash_fields(),
        "train_on": config.train_on,
        "drop_empty": config.drop_empty,
        "max_row_bytes": config.max_row_bytes,
    }
    return [
        TokenizeJob(
            output_dir=absolute_root(config),
            stage=DOMAIN.stage_key(
                "tokenize", **shared, segments=[_segment_fields(s, digests[s.name]) for s in segments]
            ),
            segments=segments,
            dataset=entry.dataset,
            source=identity.tokenizer,
            tokenizer=config.tokenizer,
            train_on=config.train_on,
            drop_empty=config.drop_empty,
            max_row_bytes=config.max_row_bytes,
            label=entry.name,
            seen=identity.seen_of(segment.path for segment in segments),
        )
        for segments in group(cut(entry.files, part_bytes), part_bytes)
    ]


def screen_jobs(config: PackSftConfig, identity: PackIdentity) -> list[ScreenJob]:
    """Create the job that looks at the first rows of each data set."""
    return [
        ScreenJob(
            output_dir=absolute_root(config),
            stage=DOMAIN.stage_key(
                "screen",
                dataset=entry.dataset.hash_fields(["dialect", "fields", "where"]),
                tokenizer=tokenizer_fields(identity.tokenizer),
                settings=config.tokenizer.hash_fields(),
                train_on=config.train_on,
                check_template=config.tokenizer.check_template,
                max_row_bytes=config.max_row_bytes,
                files=entry.named_digests(),
            ),
            files=entry.files,
            dataset=entry.dataset,
            source=identity.tokenizer,
            tokenizer=config.tokenizer,
            train_on=config.train_on,
            max_row_bytes=config.max_row_bytes,
            label=entry.name,
            seen=identity.seen_of(file.path for file in entry.files),
        )
        for entry in identity.sources
    ]


def _segment_fields(segment: Segment, digest: str) -> list[object]:
    return [segment.name, digest, segment.format, segment.start, segment.stop]


@dataclass(frozen=True)
class SplitPlan:
    """A plan to compute: one data set in one split."""

    dataset: DatasetConfig
    split: str
    pack_hash: str
    job: PlanJob


def plan_jobs(config: PackSftConfig, spools: Mapping[str, Sequence[Receipt]]) -> list[SplitPlan]:
    """Create one plan job for each split and data set, ordered by split.

    Args:
        spools: the tokenize receipts of every data set, in part order.
    """
    plans = []
    for split, (low, high) in config.splits.intervals().items():
        for dataset in config.datasets:
            receipts = spools[dataset.name]
            stages = tuple(receipt.stage for receipt in receipts)
            shared = {
                "spools": stages,
                "seed": config.seed,
                "deduplicate": config.deduplicate,
                "pack": config.pack.hash_fields(),
                "shard_tokens": config.storage.shard_tokens,
            }
            job = PlanJob(
                output_dir=absolute_root(config),
                stage=DOMAIN.stage_key("plan", **shared, interval=[low, high]),
                spool_stages=stages,
                source_files=tuple(tuple(receipt.statistics["source_files"]) for receipt in receipts),
                low=low,
                high=high,
                seed=config.seed,
                deduplicate=config.deduplicate,
                pack=config.pack,
                shard_tokens=config.storage.shard_tokens,
                label=f"{dataset.name} {split}",
            )
            storage = config.storage.hash_fields()
            plans.append(SplitPlan(dataset, split, DOMAIN.stage_key("pack", **shared, storage=storage), job))
    return plans


def write_jobs(config: PackSftConfig, plan: SplitPlan, planned: Receipt, spool: Receipt) -> list[WriteJob]:
    """Create the jobs that write the shards of one plan, at most 128 of them.

    Args:
        planned: the plan's receipt.
        spool: any tokenize receipt of the data set; it has the tokenizer's ids.
    """
    storage = config.storage.hash_fields()
    stage = DOMAIN.stage_key("write", plan=planned.stage, storage=storage)
    shards = int(planned.statistics["shards"])
    batch = batch_size(shards, _MAX_WRITE_TASKS)
    return [
        WriteJob(
            output_dir=plan.job.output_dir,
            stage=stage,
            part=part,
            plan_stage=planned.stage,
            spool_stages=plan.job.spool_stages,
            first_shard=first,
            end_shard=min(first + batch, shards),
            pack=config.pack,
            storage=config.storage,
            eos_id=spool.statistics["eos_id"],
            tokenizer_digest=str(spool.statistics["tokenizer_digest"]),
            vocabulary_size=int(spool.statistics["vocabulary_size"]),
            label=plan.job.label,
        )
        for part, first in enumerate(range(0, shards, batch))
    ]
