"""The Prefect tasks of pack-sft: each calls one kernel and returns its result."""

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
    """Tokenize one part of a data set into a token spool."""
    return do(tokenize_part, job)


@task(name="plan")
def plan(job: PlanJob) -> Receipt:
    """Plan the packing of one data set and split."""
    return do(plan_packs, job)


@task(name="write")
def write(job: WriteJob) -> Receipt:
    """Write consecutive shards of one plan."""
    return do(write_shards, job)


@task(name="validate", persist_result=False)
def validate(job: ValidateJob) -> Verdict:
    """Validate every shard row by row, and the totals; fail on the first error."""
    return check_written(job)
