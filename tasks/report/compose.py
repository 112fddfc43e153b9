"""Compose a run's report from the parts common to all flows and those of its own flow.

A report must never endanger the data: a part that fails is logged, named in the report's remarks, and left
out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from schemas.report import Chart, Column, Fact, Report, Sample, Table
from tasks.report import sections
from tasks.report.numbers import count
from tasks.report.rejects import reject_tables
from tasks.report.reuse import Reuse
from tasks.run.drift import Drift
from tasks.run.environment import environment, versions
from tasks.run.layout import CONFIG, INPUTS, MANIFEST
from tasks.run.publish import Publication

# Most rows of a flow's own table; a sample may have thousands of buckets.
_MOST_ROWS = 100

log = logging.getLogger("gristmill.report")

T = TypeVar("T")


class FlowReport(Protocol):
    """The parts of a report that are specific to one flow.

    Attributes:
        subject: what the run makes from what, in a few words.
        steps: the flow's cached steps, in order.
    """

    @property
    def subject(self) -> str: ...
    @property
    def steps(self) -> tuple[str, ...]: ...
    def facts(self) -> tuple[Fact, ...]:
        """Return the headline numbers."""
        ...

    def tables(self) -> tuple[Table, ...]:
        """Return the flow's own tables."""
        ...

    def charts(self) -> tuple[Chart, ...]:
        """Return the flow's own charts."""
        ...

    def samples(self) -> tuple[Sample, ...]:
        """Return examples of the output."""
        ...


@dataclass(frozen=True)
class ReportJob:
    """A validated run to report on.

    Attributes:
        reuse: which tasks ran and which were reused, if known.
        drift: the comparison with the last published run, if there is one.
    """

    publication: Publication
    flow_report: FlowReport
    reuse: Reuse | None = None
    drift: Drift | None = None


def compose(job: ReportJob) -> Report:
    """Compose the whole report; parts that fail become remarks."""
    publication, told = job.publication, job.flow_report
    remarks = [
        f"{measure.name} is out of bounds; this run was not published"
        for measure in (job.drift.measures if job.drift is not None else ())
        if measure.exceeded
    ]
    remarks += publication.warnings

    def tried(what: str, make: Callable[[], tuple[T, ...]]) -> tuple[T, ...]:
        try:
            return make()
        except Exception as error:
            log.warning("the report leaves out %s: %s: %s", what, type(error).__name__, error)
            log.debug("traceback of this failure", exc_info=True)
            remarks.append(f"{what} could not be made: {type(error).__name__}: {error}")
            return ()

    return Report(
        flow=publication.flow,
        run_hash=publication.run_hash,
        subject=told.subject,
        made=str(environment()["created_at"]).replace("T", " ").replace("+00:00", " UTC"),
        facts=tried("the headline numbers", told.facts),
        ledger=sections.ledger_table(publication.ledger),
        drift=sections.drift_table(job.drift),
        rejects=tried("the rejected rows", lambda: reject_tables(publication)),
        tables=tried("the tables", lambda: tuple(_capped(table) for table in told.tables())),
        charts=tried("the plots", told.charts) + sections.losses_chart(publication.ledger),
        samples=tried("the samples", told.samples),
        reuse=sections.reuse_table(job.reuse),
        lineage=sections.lineage(publication.stages, told.steps, publication.inputs, publication.run_hash),
        inputs=sections.inputs_table(publication.inputs),
        outputs=sections.outputs_table(publication),
        versions=Table("Versions", (Column("package"), Column("version")), tuple(versions().items())),
        links=_links(publication),
        remarks=tuple(remarks),
    )


def _capped(table: Table) -> Table:
    rest = len(table.rows) - _MOST_ROWS
    if rest <= 0:
        return table
    note = f"{table.note} {count(rest)} more are in the manifest's statistics.".strip()
    return replace(table, rows=table.rows[:_MOST_ROWS], note=note)


def _links(publication: Publication) -> tuple[tuple[str, str], ...]:
    links = [("manifest", MANIFEST), ("configuration", CONFIG), ("inputs", INPUTS)]
    return (*links, *((name, name) for name in sorted(publication.documents)))
