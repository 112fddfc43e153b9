"""The Prefect tasks that end every flow's run."""

from __future__ import annotations

import logging
from pathlib import Path

from prefect import task

from schemas.run import RunManifest
from tasks.report.compose import ReportWork, compose
from tasks.report.page import render_page
from tasks.runtime.artifacts import show
from tasks.store.layout import REPORT_PAGE, run_folder
from tasks.store.publish import Publication, publish_run

log = logging.getLogger("gristmill.report")


@task(name="report", persist_result=False)
def report(work: ReportWork) -> bytes | None:
    """The report's page, and the artifacts; `None`, and a warning, if that fails: it never fails a run."""
    page = None
    try:
        composed = compose(work)
        page = render_page(composed)
        folder = run_folder(Path(work.publication.output_dir), work.publication.run_hash)
        show(composed, (folder / REPORT_PAGE).absolute().as_uri())
    except Exception as error:
        what = "no report" if page is None else "no artifacts"
        log.warning("the run goes on with %s: %s: %s", what, type(error).__name__, error)
        log.debug("how that failed", exc_info=True)
    return page


@task(name="publish", persist_result=False)
def publish(work: Publication) -> RunManifest:
    """The run folder, its manifest, and the pointers to it."""
    return publish_run(work)
