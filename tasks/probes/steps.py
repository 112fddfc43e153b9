"""The Prefect tasks of build-probe-rows: each calls one kernel and returns what it returned."""

from __future__ import annotations

from prefect import task

from schemas.run import Receipt
from tasks.probes.gather import GatherJob, gather_shards
from tasks.probes.scatter import ScatterJob, scatter_rows
from tasks.probes.validate import ValidateJob, check_written
from tasks.run.contract import do


@task(name="scatter")
def scatter(job: ScatterJob) -> Receipt:
    """Sorted runs of some row groups."""
    return do(scatter_rows, job)


@task(name="gather")
def gather(job: GatherJob) -> Receipt:
    """Shards of some ranges of probes."""
    return do(gather_shards, job)


@task(name="validate", persist_result=False)
def validate(job: ValidateJob) -> int:
    """Every shard sound, every total right."""
    return check_written(job)
