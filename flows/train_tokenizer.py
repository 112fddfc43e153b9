"""train-tokenizer: a tokenizer from a sample."""

from __future__ import annotations

import logging
from typing import Any

from prefect import flow

from schemas.run import RunManifest
from schemas.tokenizer import FLOW, TrainTokenizerConfig, measured
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
from tasks.tokenizer.stages import compare_jobs, train_job
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
    """Run the steps in order: train, compare, validate, report, publish."""
    [trained] = each(steps.train, [train_job(config, identity)])
    ledger = run_ledger(config, trained)
    compared = tuple(each(steps.compare, compare_jobs(config, identity)))
    run = TrainedRun(config, trained, compared, ledger)
    for bucket in run.buckets:
        log.info("%s: %s", bucket["bucket"], measured(bucket))
    once(steps.validate, ValidateJob(config.output_dir, trained))
    return finish(DOMAIN, config, identity, contents(run), TokenizerReport(run), once, reuse)
