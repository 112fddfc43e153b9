"""train-tokenizer: a byte-level BPE tokenizer from a sample."""

from __future__ import annotations

import logging
from typing import Any

from prefect import flow

from schemas.run import RunManifest
from schemas.tokenizer import FLOW, TrainTokenizerConfig
from tasks.report.reuse import Reuse
from tasks.run.receipts import Verify
from tasks.runtime.mapping import Each, Once
from tasks.runtime.names import flow_run_name
from tasks.runtime.runners import runner_from_environment
from tasks.runtime.story import tell
from tasks.steps import finish
from tasks.tokenizer import steps
from tasks.tokenizer.identity import DOMAIN, TrainIdentity, identify
from tasks.tokenizer.ledger import run_ledger
from tasks.tokenizer.publish import TrainedRun, contents
from tasks.tokenizer.report import TokenizerReport
from tasks.tokenizer.stages import train_job
from tasks.tokenizer.validate import ValidateJob

log = logging.getLogger("gristmill.train_tokenizer")


@flow(name=FLOW, flow_run_name=flow_run_name, persist_result=False, task_runner=runner_from_environment())
def train_tokenizer(
    config: TrainTokenizerConfig, verify: Verify = Verify.SIZE, force: bool = False
) -> dict[str, Any]:
    """Train a tokenizer that transformers can load.

    Args:
        config: the sample, the vocabulary, the special tokens and the chat template.
        verify: how closely to check cached results before reusing them.
        force: run every step again, even if it is cached.
    """
    return tell(DOMAIN, identify, mill, config, verify, force)


def mill(
    config: TrainTokenizerConfig, identity: TrainIdentity, each: Each, once: Once, reuse: Reuse | None = None
) -> RunManifest:
    """Run the steps in order: train, validate, report, publish."""
    [trained] = each(steps.train, [train_job(config, identity)])
    ledger = run_ledger(config, trained)
    for bucket in trained.statistics["buckets"]:
        log.info(
            "%s: %s bytes per token on %d held-out rows",
            bucket["bucket"],
            bucket["bytes_per_token"],
            bucket["held_out_rows"],
        )
    once(steps.validate, ValidateJob(config.output_dir, trained))
    run = TrainedRun(config, trained, ledger)
    return finish(DOMAIN, config, identity, contents(run), TokenizerReport(run), once, reuse)
