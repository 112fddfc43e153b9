"""Show reports as artifacts of their Prefect run."""

from __future__ import annotations

import logging

from prefect.artifacts import create_link_artifact, create_markdown_artifact
from prefect.context import TaskRunContext

from schemas.report import Report
from tasks.report import markdown

log = logging.getLogger("gristmill.report")


def show(report: Report, page: str) -> None:
    """Create the artifacts of a run; do nothing outside a Prefect run.

    Args:
        page: URI of the report's page.

    Keys are the same for every run of a flow, so the UI lists its summaries as versions of one artifact.
    """
    if TaskRunContext.get() is None:
        return
    title = f"{report.subject} · {report.run_hash}"
    create_markdown_artifact(markdown.summary(report), key=f"{report.flow}-summary", description=title)
    if report.samples:
        create_markdown_artifact(markdown.bins(report.samples), key=f"{report.flow}-bins", description=title)
    create_link_artifact(page, link_text="report.html", key=f"{report.flow}-report", description=title)
