"""Turn a train-tokenizer configuration into its one job, which depends on everything that the run depends on."""

from __future__ import annotations

from schemas.tokenizer import TrainTokenizerConfig
from tasks.run.contract import absolute_root
from tasks.tokenizer.identity import TrainIdentity
from tasks.tokenizer.train import TrainJob


def train_job(config: TrainTokenizerConfig, identity: TrainIdentity) -> TrainJob:
    """Return the job that trains on the shards of the sample, in order."""
    [sample] = identity.sources
    return TrainJob(
        output_dir=absolute_root(config),
        stage=identity.stage,
        shards=tuple((str(file.path), file.name) for file in sample.files),
        config=config,
        chat_template=identity.chat_template,
        seen=identity.seen,
    )
