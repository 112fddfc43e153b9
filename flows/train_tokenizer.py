"""train-tokenizer: a byte-level BPE tokenizer from a sample."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from prefect import flow

from schemas.run import RunManifest
from schemas.tokenizer import FLOW, PUBLISHED, TrainTokenizerConfig
from tasks.corpus import steps
from tasks.report.reuse import Reuse
from tasks.run.layout import claim
from tasks.run.receipts import Verify
from tasks.runtime.mapping import Each, Once, each_with_receipts, run_once
from tasks.runtime.names import flow_run_name, name_run
from tasks.runtime.runners import runner_from_environment
from tasks.steps import publish_with_report
from tasks.tokenizer.identity import Identity, identify
from tasks.tokenizer.publish import TrainedRun, publication
from tasks.tokenizer.report import TokenizerDetails
from tasks.tokenizer.train import TrainWork

log = logging.getLogger("gristmill.train_tokenizer")


@flow(name=FLOW, flow_run_name=flow_run_name, persist_result=False, task_runner=runner_from_environment())
def train_tokenizer(
    config: TrainTokenizerConfig, verify: Verify = Verify.SIZE, force: bool = False
) -> dict[str, Any]:
    """Train a tokenizer that transformers loads.

    Args:
        config: the sample, the vocabulary, the special tokens and the chat template.
        verify: how closely cached results are checked before they are used again.
        force: do every step again, whatever is cached.
    """
    identity = identify(config)
    name_run(config, identity.run_hash)
    reuse = Reuse()
    each = each_with_receipts(Path(config.output_dir), verify, force, reuse)
    return mill(config, identity, each, run_once, reuse).model_dump(mode="json")


def mill(
    config: TrainTokenizerConfig, identity: Identity, each: Each, once: Once, reuse: Reuse | None = None
) -> RunManifest:
    """The story of a run: train, report, publish."""
    claim(Path(config.output_dir), FLOW, PUBLISHED)
    work = TrainWork(
        output_dir=str(Path(config.output_dir).absolute()),
        stage=identity.stage,
        shards=tuple(str(file.path) for file in identity.files),
        config=config,
        chat_template=identity.chat_template,
        seen=identity.seen,
    )
    [trained] = each(steps.train, [work])
    for bucket in trained.statistics["buckets"]:
        log.info(
            "%s: %s bytes per token on %d held-out rows",
            bucket["bucket"],
            bucket["bytes_per_token"],
            bucket["held_out_rows"],
        )
    run = TrainedRun(config, identity.run_hash, trained, tuple(identity.records()), identity.seen)
    manifest = publish_with_report(publication(run), TokenizerDetails(run), config.alarms, reuse, once)
    log.info("published run %s: %d tokens", manifest.run_hash, manifest.statistics["vocabulary_size"])
    return manifest
