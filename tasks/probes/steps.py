"""The Prefect tasks of build-probe-rows: each calls one kernel and returns what it returned."""

from __future__ import annotations

from prefect import task

from schemas.run import Receipt
from tasks.probes.gather import GatherWork, gather_shards
from tasks.probes.scatter import ScatterWork, scatter_rows
from tasks.probes.validate import ValidateWork, check_written
from tasks.run.contract import do


@task(name="scatter")
def scatter(work: ScatterWork) -> Receipt:
    """Sorted runs of some row groups."""
    return do(scatter_rows, work)


@task(name="gather")
def gather(work: GatherWork) -> Receipt:
    """Shards of some ranges of probes."""
    return do(gather_shards, work)


@task(name="validate", persist_result=False)
def validate(work: ValidateWork) -> int:
    """Every shard sound, every total right."""
    return check_written(work)
