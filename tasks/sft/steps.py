"""The Prefect tasks of pack-sft: each calls one kernel and returns what it returned."""

from __future__ import annotations

from prefect import task

from schemas.run import Receipt
from schemas.verdict import Verdict
from tasks.run.contract import do
from tasks.sft.plan import PlanWork, plan_packs
from tasks.sft.tokenize import TokenizeWork, tokenize_part
from tasks.sft.validate import ValidateWork, check_written
from tasks.sft.write import WriteWork, write_shards


@task(name="tokenize")
def tokenize(work: TokenizeWork) -> Receipt:
    """One part of a data set to a token spool."""
    return do(tokenize_part, work)


@task(name="plan")
def plan(work: PlanWork) -> Receipt:
    """One data set and split to a pack plan."""
    return do(plan_packs, work)


@task(name="write")
def write(work: WriteWork) -> Receipt:
    """A run of shards of one plan."""
    return do(write_shards, work)


@task(name="validate", persist_result=False)
def validate(work: ValidateWork) -> Verdict:
    """Every shard, row by row, and the totals; fails on the first error."""
    return check_written(work)
