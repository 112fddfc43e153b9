"""build-probe-rows: network measurements to one ArrayRecord record per source probe, train and test by probe."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from prefect import flow

from schemas.probes import FLOW, PUBLISHED, BuildProbeRowsConfig
from schemas.run import RunManifest
from tasks.probes import steps
from tasks.probes.checks import check_rejects, check_train, run_ledger
from tasks.probes.identity import Identity, identify
from tasks.probes.inventory import take_inventory
from tasks.probes.publish import WrittenRun, publication
from tasks.probes.records.writer import array_record_module
from tasks.probes.report import ProbeDetails
from tasks.probes.stages import gather_works, scatter_works
from tasks.probes.validate import ValidateWork
from tasks.report.reuse import Reuse
from tasks.run.layout import claim
from tasks.run.receipts import Verify
from tasks.runtime.mapping import Each, Once, each_with_receipts, run_once
from tasks.runtime.names import flow_run_name, name_run
from tasks.runtime.runners import runner_from_environment
from tasks.steps import publish_with_report

log = logging.getLogger("gristmill.build_probe_rows")


@flow(name=FLOW, flow_run_name=flow_run_name, persist_result=False, task_runner=runner_from_environment())
def build_probe_rows(
    config: BuildProbeRowsConfig, verify: Verify = Verify.SIZE, force: bool = False
) -> dict[str, Any]:
    """Turn network measurements into one record per probe.

    Args:
        config: what to read and how to divide it.
        verify: how closely cached results are checked before they are used again.
        force: do every step again, whatever is cached.
    """
    identity = identify(config)
    name_run(config, identity.run_hash)
    reuse = Reuse()
    each = each_with_receipts(Path(config.output_dir), verify, force, reuse)
    return mill(config, identity, each, run_once, reuse).model_dump(mode="json")


def mill(
    config: BuildProbeRowsConfig, identity: Identity, each: Each, once: Once, reuse: Reuse | None = None
) -> RunManifest:
    """The story of a run: inventory, scatter, gather, validate, report, publish."""
    array_record_module()
    root = Path(config.output_dir)
    claim(root, FLOW, PUBLISHED)
    files = take_inventory(identity)

    scatters = scatter_works(config, files)
    scattered = each(steps.scatter, scatters)
    ledger = check_rejects(scattered, config.max_reject_fraction, root)
    log.info("scattered %d rows of %d files, %d rejected", ledger.rows_in, len(files), ledger.rows_rejected)

    gathers = gather_works(config, scatters, scattered)
    check_train(gathers)
    gathered = each(steps.gather, gathers)
    ledger = run_ledger(ledger, gathered)
    for work in gathers:
        for shard in work.shards:
            log.info("%s: %d measurements of %d probes in a shard", shard.split, shard.rows, shard.probes)

    once(steps.validate, ValidateWork(config.output_dir, tuple(gathered), ledger.rows_used))
    run = WrittenRun(
        config=config,
        run_hash=identity.run_hash,
        scattered=tuple(scattered),
        gathered=tuple(gathered),
        ledger=ledger,
        inputs=tuple(identity.records()),
        seen=identity.seen,
    )
    manifest = publish_with_report(publication(run), ProbeDetails(run), config.alarms, reuse, once)
    log.info("published run %s: %d measurements", manifest.run_hash, manifest.ledger.rows_used)
    return manifest
