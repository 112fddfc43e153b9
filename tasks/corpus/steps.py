"""The Prefect tasks of sample-corpus and train-tokenizer: each calls one kernel and returns what it returned."""

from __future__ import annotations

from prefect import task

from schemas.run import Receipt
from tasks.corpus.screen import ScreenWork, screen_files
from tasks.corpus.select import SelectWork, select_bucket
from tasks.corpus.validate import ValidateWork, check_written
from tasks.corpus.write import WriteWork, write_sample
from tasks.inputs.fingerprint import check_unchanged
from tasks.tokenizer.train import TrainWork, train_tokenizer


@task(name="screen")
def screen(work: ScreenWork) -> Receipt:
    """Which documents of some files may be sampled."""
    receipt = screen_files(work)
    # The receipt is kept under a key made of the inputs' digests, so it must be of just those bytes.
    check_unchanged({file.path: list(file.seen) for file in work.files})
    return receipt


@task(name="select")
def select(work: SelectWork) -> Receipt:
    """The cutoff of one bucket."""
    return select_bucket(work)


@task(name="write")
def write(work: WriteWork) -> Receipt:
    """Shards of one bucket."""
    receipt = write_sample(work)
    check_unchanged({piece.path: list(piece.seen) for shard in work.shards for piece in shard.pieces})
    return receipt


@task(name="validate", persist_result=False)
def validate(work: ValidateWork) -> int:
    """Every bucket complete, every shard sound."""
    return check_written(work)


@task(name="train")
def train(work: TrainWork) -> Receipt:
    """A tokenizer, and its bytes per token on held-out rows."""
    receipt = train_tokenizer(work)
    check_unchanged(work.seen)
    return receipt
