"""Turn a build-probe-rows configuration into jobs, stage by stage, and compute the hashes that key each stage.

scatter, some row groups or text each -> merge, some small runs each -> gather, a shard each. Keys do not cover
portions, workers and the spill folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from schemas.probes import BuildProbeRowsConfig
from schemas.run import Receipt
from tasks.probes.gather import GatherJob
from tasks.probes.identity import DOMAIN
from tasks.probes.inventory import SourceFile, cut_parts
from tasks.probes.merge import MergeJob
from tasks.probes.records.writer import writer_options
from tasks.probes.rows.pieces import Piece, Reading
from tasks.probes.runs.layout import RUN_LIMITS, SPILL_FORMAT
from tasks.probes.runs.place import RunRef
from tasks.probes.runs.read import RunReader
from tasks.probes.scatter import ScatterJob
from tasks.probes.shards import ShardRange, SplitRule, plan_shards
from tasks.run.contract import absolute_root
from tasks.run.layout import STAGES

_PORTION_ROWS = 1 << 18
# So many ranges a shard reads from runs of any size.
_FEW_RUNS = 64
# Runs of a group, on average, if they are small.
_GROUP_RUNS = 32


def scatter_jobs(config: BuildProbeRowsConfig, files: Sequence[SourceFile]) -> list[ScatterJob]:
    """Return the jobs of the first pass, in input order."""
    return [_scatter_job(config, pieces) for pieces in cut_parts(files)]


def _scatter_job(config: BuildProbeRowsConfig, pieces: tuple[Piece, ...]) -> ScatterJob:
    named = [piece.key() for piece in pieces]
    reading = config.hash_fields(["columns", "event_time_unit"])
    stage = DOMAIN.stage_key("scatter", spill=SPILL_FORMAT, pieces=named, seed=config.seed, **reading)
    return ScatterJob(
        output_dir=absolute_root(config),
        stage=stage,
        pieces=pieces,
        seed=config.seed,
        reading=Reading.of(config),
        spill_dir=_spill_dir(config),
        seen={piece.path: piece.seen for piece in pieces},
    )


def merge_jobs(
    config: BuildProbeRowsConfig, scatters: Sequence[ScatterJob], receipts: Sequence[Receipt]
) -> list[MergeJob]:
    """Return the jobs that merge small runs of the first pass; a few are read as they are.

    A group of neighbours ends where a run has a key of a certain form, too, so that a new file re-makes one group.
    """
    found = _runs_of(scatters, receipts)
    if len(found) <= _FEW_RUNS:
        return []
    groups: list[list[RunRef]] = [[]]
    held = dict.fromkeys(RUN_LIMITS, 0)
    for run, size in found:
        if groups[-1] and any(held[name] + size[name] > most for name, most in RUN_LIMITS.items()):
            groups.append([])
            held = dict.fromkeys(RUN_LIMITS, 0)
        groups[-1].append(run)
        held = {name: held[name] + size[name] for name in RUN_LIMITS}
        if int(run.stage, 16) % _GROUP_RUNS == 0:
            groups.append([])
            held = dict.fromkeys(RUN_LIMITS, 0)
    return [_merge_job(config, tuple(group)) for group in groups if len(group) > 1]


def _merge_job(config: BuildProbeRowsConfig, runs: tuple[RunRef, ...]) -> MergeJob:
    return MergeJob(
        output_dir=absolute_root(config),
        stage=DOMAIN.stage_key("merge", spill=SPILL_FORMAT, runs=_named(runs)),
        runs=runs,
        spill_dir=_spill_dir(config),
    )


def gather_jobs(
    config: BuildProbeRowsConfig,
    scatters: Sequence[ScatterJob],
    receipts: Sequence[Receipt],
    merges: Sequence[MergeJob] = (),
) -> list[GatherJob]:
    """Return the jobs of the second pass, one for each shard, in the order in which shards are published.

    Args:
        scatters, receipts: the jobs of the first pass and their receipts.
        merges: those that have merged some of its runs.

    Raises:
        WorkError: `hash_collision`: two probes have the same hash.
        IntegrityError: a run is damaged.
    """
    found = _runs_of(scatters, receipts)
    merged = {run: RunRef(job.stage, 0) for job in merges for run in job.runs}
    runs = tuple(dict.fromkeys(merged.get(run, run) for run, _ in found))
    root = Path(absolute_root(config))
    plan = plan_shards(
        lambda: (RunReader(root, run) for run in runs),
        sum(size["dst_bytes"] for _, size in found),
        config.split,
        config.train_ratio,
        root / STAGES,
    )
    total = sum(size["rows"] for _, size in found)
    portion_rows = _PORTION_ROWS if config.partitions is None else -(-total // config.partitions)
    runs_key = DOMAIN.stage_key("runs", runs=_named(runs))
    return [_gather_job(config, runs, runs_key, shard, plan.rule, portion_rows) for shard in plan.shards]


def _gather_job(
    config: BuildProbeRowsConfig,
    runs: tuple[RunRef, ...],
    runs_key: str,
    shard: ShardRange,
    rule: SplitRule,
    portion_rows: int,
) -> GatherJob:
    return GatherJob(
        output_dir=absolute_root(config),
        stage=DOMAIN.stage_key(
            "gather",
            runs=runs_key,
            shard=asdict(shard),
            # For a split by hash, the range of a shard already decides its probes.
            first_test=rule.first_test,
            max_record_bytes=config.max_record_bytes,
            options=config.hash_fields(["compression", "compression_level", "deduplicate"]),
        ),
        runs=runs,
        shard=shard,
        rule=rule,
        max_record_bytes=config.max_record_bytes,
        deduplicate=config.deduplicate,
        options=writer_options(config.compression, config.compression_level),
        portion_rows=portion_rows,
        label=shard.split,
    )


def _runs_of(
    scatters: Sequence[ScatterJob], receipts: Sequence[Receipt]
) -> list[tuple[RunRef, dict[str, int]]]:
    """Return the runs of the first pass, in input order, and their sizes."""
    return [
        (RunRef(job.stage, number), size)
        for job, receipt in zip(scatters, receipts, strict=True)
        for number, size in enumerate(receipt.statistics["runs"])
    ]


def _named(runs: Sequence[RunRef]) -> list[list[Any]]:
    return [[run.stage, run.number] for run in runs]


def _spill_dir(config: BuildProbeRowsConfig) -> str:
    return str(Path(config.spill_dir).expanduser().absolute()) if config.spill_dir else ""
