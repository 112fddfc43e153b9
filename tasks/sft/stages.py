"""The jobs of a pack-sft run, stage by stage, and the hashes that key each stage.

Stage keys form a chain: a part's spool depends on its piece of the input and the tokenizing settings; the cuts of a
data set on its spools, the splits and the seed; shards on the cuts, the packing and the storage settings. Each hashes
only its own fields, so a new pack size never tokenizes again, and a new blend weight rewrites only small files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from schemas.run import Receipt
from schemas.sft import DatasetConfig, PackSftConfig
from tasks.inputs.segments import Segment, parts_of
from tasks.run.contract import absolute_root
from tasks.sft.cut import CutJob
from tasks.sft.identity import DOMAIN, DatasetSource, PackIdentity, tokenizer_fields
from tasks.sft.order.spool import ITEM
from tasks.sft.pack import PackJob
from tasks.sft.repeats import RepeatsJob, ranges_of_digests
from tasks.sft.screen import ScreenJob
from tasks.sft.tokenize import TokenizeJob

# Consecutive shards are made together until a spool gives about this much to them: smaller reads are dear.
_READ_BYTES = 1 << 20
# But so many jobs, at least, are left to be made side by side, and no job has more shards than the second.
_FEWEST_JOBS, _MOST_SHARDS = 16, 64


def tokenize_jobs(config: PackSftConfig, identity: PackIdentity) -> dict[str, list[TokenizeJob]]:
    """Create the jobs for the parts of each data set, by name."""
    return {entry.dataset.name: _tokenize_dataset(config, identity, entry) for entry in identity.sources}


def _tokenize_dataset(
    config: PackSftConfig, identity: PackIdentity, entry: DatasetSource
) -> list[TokenizeJob]:
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
        for segments in parts_of(entry.files, entry.cuts)
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


def cut_jobs(config: PackSftConfig, spools: Mapping[str, Sequence[Receipt]]) -> list[CutJob]:
    """Create the job that cuts each data set into shards, in configuration order.

    Args:
        spools: the tokenize receipts of every data set, in part order.
    """
    return [
        CutJob(
            output_dir=absolute_root(config),
            stage=DOMAIN.stage_key("cut", **_cut_fields(config, dataset, spools[dataset.name])),
            spool_stages=tuple(receipt.stage for receipt in spools[dataset.name]),
            splits=config.splits,
            seed=config.seed,
            grouped=dataset.fields.group is not None,
            deduplicate=config.deduplicate,
            shard_tokens=config.storage.shard_tokens,
            label=dataset.name,
        )
        for dataset in config.datasets
    ]


def _cut_fields(config: PackSftConfig, dataset: DatasetConfig, spools: Sequence[Receipt]) -> dict[str, Any]:
    return {
        "spools": [receipt.stage for receipt in spools],
        "splits": config.splits.hash_fields(),
        "seed": config.seed,
        "deduplicate": config.deduplicate,
        "shard_tokens": config.storage.shard_tokens,
        "grouped": dataset.fields.group is not None,
    }


def repeats_jobs(
    config: PackSftConfig, spools: Mapping[str, Sequence[Receipt]]
) -> dict[str, list[RepeatsJob]]:
    """Create the jobs that find equal conversations in different groups, for each data set that may have some."""
    if not config.deduplicate:
        return {}
    return {
        dataset.name: _repeats_of_dataset(config, dataset, spools[dataset.name])
        for dataset in config.datasets
        if dataset.fields.group is not None
    }


def _repeats_of_dataset(
    config: PackSftConfig, dataset: DatasetConfig, spools: Sequence[Receipt]
) -> list[RepeatsJob]:
    stages = tuple(receipt.stage for receipt in spools)
    sequences = sum(int(receipt.statistics["sequences"]) for receipt in spools)
    return [
        RepeatsJob(
            output_dir=absolute_root(config),
            stage=DOMAIN.stage_key("repeats", spools=stages),
            part=part,
            spool_stages=stages,
            low=low,
            high=high,
            label=dataset.name,
        )
        for part, (low, high) in enumerate(ranges_of_digests(sequences))
    ]


@dataclass(frozen=True)
class SplitShards:
    """The shards to make of one data set in one split.

    Attributes:
        pack_hash: names the folder of the data set's shards.
        jobs: in shard order.
    """

    dataset: DatasetConfig
    split: str
    pack_hash: str
    jobs: tuple[PackJob, ...]


def pack_jobs(
    config: PackSftConfig,
    spools: Mapping[str, Sequence[Receipt]],
    cuts: Sequence[Receipt],
    repeats: Mapping[str, Sequence[RepeatsJob]],
) -> list[SplitShards]:
    """Create the jobs that make the shards, by split and data set.

    Args:
        spools: the tokenize receipts of every data set, in part order.
        cuts: the receipt of each data set's cuts, in configuration order.
        repeats: the jobs that found equal conversations in different groups, by data set.
    """
    return [
        _pack_split(config, dataset, split, spools[dataset.name], cut, repeats.get(dataset.name, ()))
        for split in config.splits.intervals()
        for dataset, cut in zip(config.datasets, cuts, strict=True)
    ]


def _pack_split(
    config: PackSftConfig,
    dataset: DatasetConfig,
    split: str,
    spools: Sequence[Receipt],
    cut: Receipt,
    repeats: Sequence[RepeatsJob],
) -> SplitShards:
    settings = {"pack": config.pack.hash_fields(), "storage": config.storage.hash_fields()}
    stage = DOMAIN.stage_key("pack", cut=cut.stage, split=split, **settings)
    packing = DOMAIN.stage_key("packing", cut=cut.stage, split=split, pack=settings["pack"])
    shards = int(cut.statistics["shards"][split])
    batch = shards_of_job(shards, len(spools), config.storage.shard_tokens)
    said = spools[0].statistics
    # One tuple for all jobs: there may be tens of thousands of spools.
    stages = tuple(receipt.stage for receipt in spools)
    source_files = tuple(tuple(receipt.statistics["source_files"]) for receipt in spools)
    jobs = tuple(
        PackJob(
            output_dir=absolute_root(config),
            stage=stage,
            part=part,
            cut_stage=cut.stage,
            spool_stages=stages,
            source_files=source_files,
            repeats_stage=repeats[0].stage if repeats else "",
            repeats_parts=len(repeats),
            split=split,
            packing=packing,
            first_shard=first,
            end_shard=min(first + batch, shards),
            seed=config.seed,
            grouped=dataset.fields.group is not None,
            deduplicate=config.deduplicate,
            pack=config.pack,
            storage=config.storage,
            eos_id=said["eos_id"],
            tokenizer_digest=str(said["tokenizer_digest"]),
            vocabulary_size=int(said["vocabulary_size"]),
            label=f"{dataset.name} {split}",
        )
        for part, first in enumerate(range(0, shards, batch))
    )
    pack_hash = DOMAIN.stage_key("packed", cut=cut.stage, **settings)
    return SplitShards(dataset, split, pack_hash, jobs)


def rest_job(shards: SplitShards, number: int, most_tokens: int) -> PackJob:
    """Create the job that makes a shard of the first rows of another one."""
    job = shards.jobs[0]
    stage = DOMAIN.stage_key("rest", pack=job.stage, shard=number, most_tokens=most_tokens)
    return replace(
        job, stage=stage, part=0, first_shard=number, end_shard=number + 1, most_tokens=most_tokens
    )


def shards_of_job(shards: int, parts: int, shard_tokens: int) -> int:
    """Return how many consecutive shards a job makes; it depends on nothing that is not in their key.

    >>> shards_of_job(500, 100, 1 << 26), shards_of_job(2000, 20_000, 1 << 26), shards_of_job(8, 500, 1 << 20)
    (1, 64, 1)
    """
    wanted = _READ_BYTES * parts // (shard_tokens * ITEM.itemsize)
    return max(1, min(wanted, shards // _FEWEST_JOBS, _MOST_SHARDS))
