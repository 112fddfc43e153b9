"""Turn a train-tokenizer configuration into its jobs: train, and measure another tokenizer on the same rows."""

from __future__ import annotations

from pathlib import Path

from schemas.tokenizer import TrainTokenizerConfig
from tasks.run.contract import absolute_root
from tasks.tokenizer.compare import CompareJob
from tasks.tokenizer.identity import TrainIdentity
from tasks.tokenizer.loading import TOKENIZER_FILE
from tasks.tokenizer.rows import Shards
from tasks.tokenizer.train import TrainJob


def train_job(config: TrainTokenizerConfig, identity: TrainIdentity) -> TrainJob:
    """Return the job that trains on the shards of the sample, in order."""
    return TrainJob(
        output_dir=absolute_root(config),
        stage=identity.stage,
        shards=_shards(identity),
        config=config,
        base=identity.base.folder if identity.base is not None else "",
        chat_template=identity.chat_template,
        seen=identity.seen,
    )


def compare_jobs(config: TrainTokenizerConfig, identity: TrainIdentity) -> list[CompareJob]:
    """Return the job that measures the compared tokenizer, if there is one."""
    if identity.compared is None:
        return []
    return [
        CompareJob(
            output_dir=absolute_root(config),
            stage=identity.compare_stage,
            shards=_shards(identity),
            seed=config.seed,
            held_out=config.held_out,
            tokenizer=str(Path(identity.compared.folder, TOKENIZER_FILE)),
            seen=identity.seen,
        )
    ]


def _shards(identity: TrainIdentity) -> Shards:
    [sample] = identity.sources
    return tuple((str(file.path), file.name) for file in sample.files)
