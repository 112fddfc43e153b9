"""The Prefect tasks of sample-corpus: each calls one kernel and returns what it returned."""

from __future__ import annotations

from prefect import task

from schemas.run import Receipt
from tasks.corpus.screen import ScreenWork, screen_files
from tasks.corpus.select import SelectWork, select_bucket
from tasks.corpus.validate import ValidateWork, check_written
from tasks.corpus.write import WriteWork, write_sample
from tasks.run.contract import do


@task(name="screen")
def screen(work: ScreenWork) -> Receipt:
    """Which documents of some files may be sampled."""
    return do(screen_files, work)


@task(name="select")
def select(work: SelectWork) -> Receipt:
    """The cutoff of one bucket."""
    return do(select_bucket, work)


@task(name="write")
def write(work: WriteWork) -> Receipt:
    """Shards of one bucket."""
    return do(write_sample, work)


@task(name="validate", persist_result=False)
def validate(work: ValidateWork) -> int:
    """Every bucket complete, every shard sound."""
    return check_written(work)
