"""Turn a build-probe-rows configuration into jobs, stage by stage, and compute the hashes that key each stage.

scatter, some row groups or text each -> gather, some shards each. Keys do not cover portions, workers and the
spill folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from schemas.probes import BuildProbeRowsConfig
from schemas.run import Receipt
from tasks.inputs.sizing import batch_size
from tasks.probes.gather import GatherJob
from tasks.probes.identity import DOMAIN
from tasks.probes.inventory import SourceFile, cut_parts
from tasks.probes.records.writer import writer_options
from tasks.probes.rows.pieces import Piece, Reading
from tasks.probes.scatter import ScatterJob
from tasks.probes.shards import ShardRange, SplitRule, cut_shards, merge_probes, shard_bytes_for, split_rule
from tasks.probes.spill import SPILL_FORMAT, SpillRef, read_probes
from tasks.run.contract import absolute_root

_PORTION_ROWS = 1 << 18
_MAX_GATHER_TASKS = 96


def scatter_jobs(config: BuildProbeRowsConfig, files: Sequence[SourceFile]) -> list[ScatterJob]:
    """Return the jobs of the first pass, in input order."""
    spill = str(Path(config.spill_dir).expanduser().absolute()) if config.spill_dir else ""
    return [_scatter_job(config, pieces, spill) for pieces in cut_parts(files)]


def _scatter_job(config: BuildProbeRowsConfig, pieces: tuple[Piece, ...], spill: str) -> ScatterJob:
    named = [piece.key() for piece in pieces]
    reading = config.hash_fields(["columns", "event_time_unit"])
    stage = DOMAIN.stage_key("scatter", spill=SPILL_FORMAT, pieces=named, seed=config.seed, **reading)
    return ScatterJob(
        output_dir=absolute_root(config),
        stage=stage,
        pieces=pieces,
        seed=config.seed,
        reading=Reading.of(config),
        spill_dir=spill,
        seen={piece.path: piece.seen for piece in pieces},
    )


def gather_jobs(
    config: BuildProbeRowsConfig, scatters: Sequence[ScatterJob], receipts: Sequence[Receipt]
) -> list[GatherJob]:
    """Return the jobs of the second pass, in the order in which shards are published.

    Args:
        scatters, receipts: the jobs of the first pass and their receipts.

    Raises:
        WorkError: `hash_collision`: two probes have the same hash.
        IntegrityError: a run of the first pass is damaged.
    """
    runs = tuple(
        SpillRef(job.stage, number)
        for job, receipt in zip(scatters, receipts, strict=True)
        for number in range(receipt.statistics["runs"])
    )
    probes = merge_probes(read_probes(Path(absolute_root(config)), run) for run in runs)
    rule = split_rule(config.split, config.train_ratio, probes)
    shards = cut_shards(probes, rule, shard_bytes_for(int(probes.record_bytes().sum())))
    total = int(probes.rows.sum())
    portion_rows = _PORTION_ROWS if config.partitions is None else -(-total // config.partitions)
    batch = batch_size(len(shards), _MAX_GATHER_TASKS)
    return [
        _gather_job(config, runs, tuple(shards[first : first + batch]), rule, portion_rows)
        for first in range(0, len(shards), batch)
    ]


def _gather_job(
    config: BuildProbeRowsConfig,
    runs: tuple[SpillRef, ...],
    shards: tuple[ShardRange, ...],
    rule: SplitRule,
    portion_rows: int,
) -> GatherJob:
    return GatherJob(
        output_dir=absolute_root(config),
        stage=DOMAIN.stage_key(
            "gather",
            runs=[[run.stage, run.number] for run in runs],
            shards=[asdict(shard) for shard in shards],
            # For a split by hash, the range of a shard already decides its probes.
            first_test=rule.first_test,
            max_record_bytes=config.max_record_bytes,
            options=config.hash_fields(["compression", "compression_level", "deduplicate"]),
        ),
        runs=runs,
        shards=shards,
        rule=rule,
        max_record_bytes=config.max_record_bytes,
        deduplicate=config.deduplicate,
        options=writer_options(config.compression, config.compression_level),
        portion_rows=portion_rows,
        label=" ".join(dict.fromkeys(shard.split for shard in shards)),
    )
