"""sample-corpus: a deterministic, exact sample of bucketed Parquet corpora."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from prefect import flow

from schemas.corpus import FLOW, PUBLISHED, SampleCorpusConfig
from schemas.run import RunManifest
from tasks.corpus import steps
from tasks.corpus.identity import Identity, identify
from tasks.corpus.inventory import take_inventory
from tasks.corpus.publish import SampledBucket, SampledRun, publication
from tasks.corpus.report import SampleDetails
from tasks.corpus.stages import plan_shards, screen_works, select_work, write_works
from tasks.corpus.validate import ValidateWork
from tasks.report.reuse import Reuse
from tasks.run.layout import claim
from tasks.run.receipts import Verify
from tasks.runtime.mapping import Each, Once, each_with_receipts, run_once
from tasks.runtime.names import flow_run_name, name_run
from tasks.runtime.runners import runner_from_environment
from tasks.steps import publish_with_report

log = logging.getLogger("gristmill.sample_corpus")


@flow(name=FLOW, flow_run_name=flow_run_name, persist_result=False, task_runner=runner_from_environment())
def sample_corpus(
    config: SampleCorpusConfig, verify: Verify = Verify.SIZE, force: bool = False
) -> dict[str, Any]:
    """Sample corpora for tokenizer training: exact, streaming, nothing lost.

    Args:
        config: what to sample and how much.
        verify: how closely cached results are checked before they are used again.
        force: do every step again, whatever is cached.
    """
    identity = identify(config)
    name_run(config, identity.run_hash)
    reuse = Reuse()
    each = each_with_receipts(Path(config.output_dir), verify, force, reuse)
    return mill(config, identity, each, run_once, reuse).model_dump(mode="json")


def mill(
    config: SampleCorpusConfig, identity: Identity, each: Each, once: Once, reuse: Reuse | None = None
) -> RunManifest:
    """The story of a run: inventory, screen, select, write, validate, report, publish."""
    claim(Path(config.output_dir), FLOW, PUBLISHED)
    _warn_about_counts(config)
    buckets = take_inventory(config, identity)
    for bucket in buckets:
        log.info(
            "%s: %d files, %d rows, %d files skipped",
            bucket.label,
            len(bucket.files),
            bucket.rows,
            len(bucket.skipped),
        )

    screens = screen_works(config, buckets)
    receipts = iter(each(steps.screen, [work for works in screens for work in works]))
    screened = [tuple(next(receipts) for _ in works) for works in screens]

    selects = [select_work(config, *parts) for parts in zip(buckets, screens, screened, strict=True)]
    selections = plan_shards(config, buckets, selects, each(steps.select, selects))

    shards = write_works(config, selections)
    receipts = iter(each(steps.write, [work for works in shards for work in works]))
    written = [tuple(next(receipts) for _ in works) for works in shards]
    sampled = tuple(SampledBucket(*parts) for parts in zip(selections, screened, written, strict=True))
    for taken in sampled:
        found = taken.selection.bucket
        log.info(
            "%s: %d rows of %d requested, %d shards",
            found.label,
            sum(taken.rows),
            found.inputs.count,
            len(taken.files),
        )

    once(steps.validate, ValidateWork(config.output_dir, sampled))
    run = SampledRun(config, identity.run_hash, sampled, tuple(identity.records()), identity.seen)
    manifest = publish_with_report(publication(run), SampleDetails(run), config.alarms, reuse, once)
    log.info("published run %s: %d rows", manifest.run_hash, manifest.ledger.rows_used)
    return manifest


def _warn_about_counts(config: SampleCorpusConfig) -> None:
    for key, dataset in config.datasets.items():
        total = sum(dataset.counts.values())
        if dataset.samples is not None and dataset.samples != total:
            log.warning(
                "datasets.%s.samples is %d and the bucket counts add up to %d", key, dataset.samples, total
            )
