"""Wrap the kernels of train-tokenizer as Prefect tasks; each calls one kernel and returns its result."""

from __future__ import annotations

from prefect import task

from schemas.run import Receipt
from schemas.verdict import Verdict
from tasks.run.contract import do
from tasks.tokenizer.train import TrainJob, train_tokenizer
from tasks.tokenizer.validate import ValidateJob, check_written


@task(name="train")
def train(job: TrainJob) -> Receipt:
    """Train a tokenizer, and measure its bytes per token on held-out rows."""
    return do(train_tokenizer, job)


@task(name="validate", persist_result=False)
def validate(job: ValidateJob) -> Verdict:
    """Check the tokenizer before it is published."""
    return check_written(job)
