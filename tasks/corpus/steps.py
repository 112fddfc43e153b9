"""Wrap the kernels of sample-corpus as Prefect tasks; each calls one kernel and returns its result."""

from __future__ import annotations

from prefect import task

from schemas.run import Receipt
from tasks.corpus.screen import ScreenJob, screen_files
from tasks.corpus.select import SelectJob, select_bucket
from tasks.corpus.validate import ValidateJob, check_written
from tasks.corpus.write import WriteJob, write_sample
from tasks.run.contract import do


@task(name="screen")
def screen(job: ScreenJob) -> Receipt:
    """Find the documents of some files that may be sampled."""
    return do(screen_files, job)


@task(name="select")
def select(job: SelectJob) -> Receipt:
    """Find the cutoff of one bucket."""
    return do(select_bucket, job)


@task(name="write")
def write(job: WriteJob) -> Receipt:
    """Write shards of one bucket."""
    return do(write_sample, job)


@task(name="validate", persist_result=False)
def validate(job: ValidateJob) -> int:
    """Check that every bucket is complete and every shard is sound."""
    return check_written(job)
