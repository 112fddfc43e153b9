"""build-probe-rows: network measurements to one ArrayRecord record per source probe, train and test by probe."""

from __future__ import annotations

import logging
from typing import Any

from prefect import flow

from schemas.probes import FLOW, BuildProbeRowsConfig
from schemas.run import RunManifest
from tasks.probes import steps
from tasks.probes.identity import DOMAIN, identify
from tasks.probes.inventory import take_inventory
from tasks.probes.ledger import check_train, input_ledger, run_ledger
from tasks.probes.publish import WrittenRun, contents, written_shards
from tasks.probes.records.writer import array_record_module
from tasks.probes.report import ProbeReport
from tasks.probes.stages import gather_jobs, merge_jobs, scatter_jobs
from tasks.probes.validate import check_totals, validate_jobs
from tasks.report.reuse import Reuse
from tasks.run.identity import Identity, Source
from tasks.run.receipts import Verify
from tasks.runtime.mapping import Each, Once
from tasks.runtime.names import flow_run_name
from tasks.runtime.runners import runner_from_environment
from tasks.runtime.story import tell
from tasks.steps import finish

log = logging.getLogger("gristmill.build_probe_rows")


@flow(name=FLOW, flow_run_name=flow_run_name, persist_result=False, task_runner=runner_from_environment())
def build_probe_rows(
    config: BuildProbeRowsConfig, verify: Verify = Verify.SIZE, force: bool = False
) -> dict[str, Any]:
    """Turn network measurements into one record per probe.

    Args:
        config: what to read and how to divide it.
        verify: how closely to check cached results before reusing them.
        force: run every step again, even if it is cached.
    """
    return tell(DOMAIN, identify, mill, config, verify, force)


def mill(
    config: BuildProbeRowsConfig,
    identity: Identity[Source],
    each: Each,
    once: Once,
    reuse: Reuse | None = None,
) -> RunManifest:
    """Run the steps in order: take inventory, scatter, merge, gather, validate, report, publish."""
    array_record_module()
    files = take_inventory(config, identity)

    scatters = scatter_jobs(config, files)
    scattered = each(steps.scatter, scatters)
    ledger = input_ledger(config, scattered)
    log.info("scattered %d rows from %d files, %d rejected", ledger.rows_in, len(files), ledger.rows_rejected)

    merges = merge_jobs(config, scatters, scattered)
    merged = each(steps.merge, merges) if merges else []
    gathers = gather_jobs(config, scatters, scattered, merges)
    check_train(gathers)
    gathered = each(steps.gather, gathers)
    ledger = run_ledger(ledger, gathered)
    for shard, _ in written_shards(gathered):
        log.info(
            "%s: %d measurements of %d probes in a shard",
            *(shard[name] for name in ("split", "measurements", "probes")),
        )

    validated = each(steps.validate, validate_jobs(config, gathered))
    check_totals(gathered, ledger.rows_used)
    run = WrittenRun(config, tuple(scattered), tuple(merged), tuple(gathered), ledger, tuple(validated))
    return finish(DOMAIN, config, identity, contents(run), ProbeReport(run), once, reuse)
