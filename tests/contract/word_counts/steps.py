"""The Prefect tasks of count-words: each calls one kernel and returns what it returned."""

from __future__ import annotations

from contract.word_counts.count import CountJob, count_words
from contract.word_counts.publish import CountedRun
from contract.word_counts.validate import check_written
from prefect import task

from schemas.run import Receipt
from tasks.run.contract import do


@task(name="count")
def count(job: CountJob) -> Receipt:
    """Count the words of one part."""
    return do(count_words, job)


@task(name="validate", persist_result=False)
def validate(job: CountedRun) -> int:
    """Check the totals."""
    return check_written(job)
