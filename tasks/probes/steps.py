"""Wrap the kernels of build-probe-rows as Prefect tasks; each calls one kernel and returns its result."""

from __future__ import annotations

from prefect import task

from schemas.run import Receipt
from tasks.probes.gather import GatherJob, gather_shards
from tasks.probes.scatter import ScatterJob, scatter_rows
from tasks.probes.validate import ValidateJob, check_written
from tasks.run.contract import do


@task(name="scatter")
def scatter(job: ScatterJob) -> Receipt:
    """Sort some row groups into runs."""
    return do(scatter_rows, job)


@task(name="gather")
def gather(job: GatherJob) -> Receipt:
    """Write shards of some ranges of probes."""
    return do(gather_shards, job)


@task(name="validate", persist_result=False)
def validate(job: ValidateJob) -> int:
    """Check that every shard is sound and every total is right."""
    return check_written(job)
