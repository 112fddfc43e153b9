"""The Prefect tasks of pack-sft: each calls one kernel and returns what it returned."""

from __future__ import annotations

from prefect import task

from schemas.run import Receipt
from schemas.verdict import Verdict
from tasks.run.contract import do
from tasks.sft.plan import PlanJob, plan_packs
from tasks.sft.tokenize import TokenizeJob, tokenize_part
from tasks.sft.validate import ValidateJob, check_written
from tasks.sft.write import WriteJob, write_shards


@task(name="tokenize")
def tokenize(job: TokenizeJob) -> Receipt:
    """One part of a data set to a token spool."""
    return do(tokenize_part, job)


@task(name="plan")
def plan(job: PlanJob) -> Receipt:
    """One data set and split to a pack plan."""
    return do(plan_packs, job)


@task(name="write")
def write(job: WriteJob) -> Receipt:
    """A run of shards of one plan."""
    return do(write_shards, job)


@task(name="validate", persist_result=False)
def validate(job: ValidateJob) -> Verdict:
    """Every shard, row by row, and the totals; fails on the first error."""
    return check_written(job)
