"""The Prefect tasks of build-probe-rows: each calls one kernel and returns what it returned."""

from __future__ import annotations

from prefect import task

from schemas.run import Receipt
from tasks.inputs.fingerprint import check_unchanged
from tasks.probes.gather import GatherWork, gather_shards
from tasks.probes.scatter import ScatterWork, scatter_rows
from tasks.probes.validate import ValidateWork, check_written


@task(name="scatter")
def scatter(work: ScatterWork) -> Receipt:
    """Sorted runs of some row groups."""
    receipt = scatter_rows(work)
    # The receipt is kept under a key made of the inputs' digests, so it must be of just those bytes.
    check_unchanged({piece.path: list(piece.seen) for piece in work.pieces})
    return receipt


@task(name="gather")
def gather(work: GatherWork) -> Receipt:
    """Shards of some ranges of probes."""
    return gather_shards(work)


@task(name="validate", persist_result=False)
def validate(work: ValidateWork) -> int:
    """Every shard sound, every total right."""
    return check_written(work)
