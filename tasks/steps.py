"""Define the Prefect tasks shared by all domains, and how every run ends."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

from prefect import task

from schemas.alarms import RowAlarms
from schemas.errors import IntegrityError
from schemas.run import RunManifest
from schemas.validation import ValidateConfig
from schemas.verdict import Verdict
from tasks.outputs.validate import validate_path
from tasks.report.compose import FlowReport, ReportJob, compose
from tasks.report.page import render_page
from tasks.report.reuse import Reuse
from tasks.run.contract import Domain
from tasks.run.drift import Drift, check_drift, compare, last_published
from tasks.run.identity import Identity
from tasks.run.layout import REPORT_PAGE, run_folder
from tasks.run.publish import Contents, Publication, publication_of, publish_run
from tasks.runtime.artifacts import show
from tasks.runtime.mapping import Once

log = logging.getLogger("gristmill.report")


@task(name="validate", persist_result=False)
def validate(config: ValidateConfig) -> Verdict:
    """Validate everything at one path; the verdict lists the faults."""
    return validate_path(config.path, full=config.level == "full")


@task(name="report", persist_result=False)
def report(job: ReportJob) -> bytes | None:
    """Compose the report, show it as artifacts, render its page.

    A report never fails a run: if it cannot be composed, log a warning and return `None` instead of the page.
    """
    page = None
    try:
        composed = compose(job)
        page = render_page(composed)
        folder = run_folder(Path(job.publication.output_dir), job.publication.run_hash)
        show(composed, (folder / REPORT_PAGE).absolute().as_uri())
    except Exception as error:
        what = "no report" if page is None else "no artifacts"
        log.warning("the run continues with %s: %s: %s", what, type(error).__name__, error)
        log.debug("traceback of this failure", exc_info=True)
    return page


@task(name="publish", persist_result=False)
def publish(job: Publication) -> RunManifest:
    """Fill the run folder, write its manifest, move the pointers to it."""
    return publish_run(job)


def finish(
    domain: Domain,
    config: Any,
    identity: Identity[Any],
    contents: Contents,
    flow_report: FlowReport,
    once: Once,
    reuse: Reuse | None = None,
) -> RunManifest:
    """Report on a validated run, then publish it unless it drifted out of bounds.

    The report comes first, so that it shows why a run was not published.

    Raises:
        IntegrityError: `drift`; nothing is published.
    """
    for warning in contents.warnings:
        log.warning("%s", warning)
    publication = publication_of(domain, config, identity, contents)
    drift = _drift(publication, config.alarms)
    page = once(report, ReportJob(publication, flow_report, reuse, drift))
    check_drift(drift)
    manifest: RunManifest = once(publish, dataclasses.replace(publication, report=page))
    ledger = manifest.ledger
    log.info("published run %s: %d rows used of %d", manifest.run_hash, ledger.rows_used, ledger.rows_in)
    return manifest


def _drift(publication: Publication, alarms: RowAlarms | None) -> Drift | None:
    try:
        last = last_published(Path(publication.output_dir), publication.run_hash)
        if last is None:
            return None
        return compare(last, publication.ledger, publication.statistics, alarms)
    except IntegrityError as error:
        if alarms is not None:
            reason = error.message.splitlines()[0]
            raise IntegrityError(
                f"alarms are set and the last published run cannot be read ({reason}); repair it by running its "
                "configuration again, or publish without comparing: --set alarms=null",
                code="drift",
                where=error.where,
            ) from None
        log.warning("cannot compare with the last published run: %s", error)
        return None
