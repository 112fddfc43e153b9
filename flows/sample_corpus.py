"""sample-corpus: a deterministic, exact sample of bucketed Parquet corpora."""

from __future__ import annotations

import logging
from typing import Any

from prefect import flow

from schemas.corpus import FLOW, SampleCorpusConfig
from schemas.run import RowLedger, RunManifest
from tasks.corpus import steps
from tasks.corpus.identity import DOMAIN, BucketSource, identify
from tasks.corpus.inventory import take_inventory
from tasks.corpus.ledger import bucket_ledger, check_screened
from tasks.corpus.publish import SampledBucket, SampledRun, contents
from tasks.corpus.report import SampleReport
from tasks.corpus.stages import plan_shards, screen_jobs, select_job, write_jobs
from tasks.corpus.validate import check_totals, validate_jobs
from tasks.report.reuse import Reuse
from tasks.run.identity import Identity
from tasks.run.receipts import Verify
from tasks.runtime.mapping import Each, Once
from tasks.runtime.names import flow_run_name
from tasks.runtime.runners import runner_from_environment
from tasks.runtime.story import tell
from tasks.steps import finish

log = logging.getLogger("gristmill.sample_corpus")


@flow(name=FLOW, flow_run_name=flow_run_name, persist_result=False, task_runner=runner_from_environment())
def sample_corpus(
    config: SampleCorpusConfig, verify: Verify = Verify.SIZE, force: bool = False
) -> dict[str, Any]:
    """Draw an exact sample from corpora for tokenizer training, streaming, with every row accounted for.

    Args:
        config: what to sample and how much.
        verify: how closely to check cached results before reusing them.
        force: run every step again, even if it is cached.
    """
    return tell(DOMAIN, identify, mill, config, verify, force)


def mill(
    config: SampleCorpusConfig,
    identity: Identity[BucketSource],
    each: Each,
    once: Once,
    reuse: Reuse | None = None,
) -> RunManifest:
    """Run the steps in order: take inventory, screen, select, write, validate, report, publish."""
    _warn_about_counts(config)
    buckets = take_inventory(config, identity, lambda jobs: each(steps.inventory, jobs))
    for bucket in buckets:
        log.info(
            "%s: %d files, %d rows, %d files skipped",
            bucket.label,
            len(bucket.files),
            bucket.rows,
            len(bucket.skipped),
        )

    screens = screen_jobs(config, buckets)
    receipts = iter(each(steps.screen, [job for jobs in screens for job in jobs]))
    screened = [tuple(next(receipts) for _ in jobs) for jobs in screens]
    check_screened(config, buckets, screened)

    selects = [select_job(config, *parts) for parts in zip(buckets, screens, screened, strict=True)]
    selections = plan_shards(config, buckets, selects, each(steps.select, selects))

    shards = write_jobs(config, selections)
    receipts = iter(each(steps.write, [job for jobs in shards for job in jobs]))
    written = [tuple(next(receipts) for _ in jobs) for jobs in shards]
    sampled = tuple(SampledBucket(*parts) for parts in zip(selections, screened, written, strict=True))
    for taken in sampled:
        found = taken.selection.bucket
        log.info(
            "%s: %d of %d requested rows, %d shards",
            found.label,
            sum(taken.rows),
            found.inputs.count,
            len(taken.files),
        )

    validated = each(steps.validate, validate_jobs(config, sampled))
    check_totals(sampled, validated)
    ledger = RowLedger.total(bucket_ledger(bucket) for bucket in sampled)
    run = SampledRun(config, identity.run_hash, sampled, ledger, tuple(validated))
    return finish(DOMAIN, config, identity, contents(run), SampleReport(run), once, reuse)


def _warn_about_counts(config: SampleCorpusConfig) -> None:
    for key, dataset in config.datasets.items():
        total = sum(dataset.counts.values())
        if dataset.samples is not None and dataset.samples != total:
            log.warning(
                "datasets.%s.samples is %d, but the bucket counts add up to %d", key, dataset.samples, total
            )
