"""How every run ends: it is reported on, held against the last published one, and published."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

from schemas.alarms import RowAlarms
from schemas.errors import IntegrityError
from schemas.run import RunManifest
from tasks.report import steps
from tasks.report.compose import Details, ReportWork
from tasks.report.reuse import Reuse
from tasks.runtime.mapping import Once
from tasks.store.drift import Drift, check_drift, compare, last_published
from tasks.store.publish import Publication

log = logging.getLogger("gristmill.report")


def publish_with_report(
    publication: Publication, details: Details, alarms: RowAlarms | None, reuse: Reuse | None, once: Once
) -> RunManifest:
    """Report on a validated run, then publish it, unless it drifted out of bounds.

    The report comes first, so that a run that is held back shows why.

    Raises:
        IntegrityError: `drift`; nothing is published.
    """
    drift = _drift(publication, alarms)
    page = once(steps.report, ReportWork(publication, details, reuse, drift))
    check_drift(drift)
    manifest: RunManifest = once(steps.publish, dataclasses.replace(publication, report=page))
    return manifest


def _drift(publication: Publication, alarms: RowAlarms | None) -> Drift | None:
    try:
        last = last_published(Path(publication.output_dir), publication.run_hash)
    except IntegrityError as error:
        if alarms is not None:
            reason = error.message.splitlines()[0]
            raise IntegrityError(
                f"alarms are set and the last published run cannot be read ({reason}); repair it by running its "
                "configuration again, or publish without comparing: --set alarms=null",
                code="drift",
                where=error.where,
            ) from None
        log.warning("no comparison with the last published run: %s", error)
        return None
    if last is None:
        return None
    return compare(last, publication.ledger, publication.statistics, alarms)
