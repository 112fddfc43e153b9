"""Compare a validated run with the last published one of the same output directory, and enforce the bounds.

A run that was published before is never stopped again: publishing it returns to bytes that passed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.alarms import PackAlarms, RejectAlarms, RowAlarms
from schemas.errors import IntegrityError
from schemas.run import RowLedger, RunManifest
from tasks.run.layout import LATEST, MANIFEST, RUNS, run_folder
from tasks.run.manifest import read_manifest, statistics_faults

_ACCEPT = (
    "nothing was published; check the run, then change the bound or accept the run with --set alarms=null"
)


@dataclass(frozen=True)
class Measure:
    """A number of both runs.

    Attributes:
        before, now: rows, or a share of 1.
        change: in the terms of its bound: relative for rows, absolute for shares, positive in the bad direction;
            `None` if it is undefined.
        bound: the largest change allowed, `None` for no limit; `field` is its name in the configuration.
    """

    name: str
    before: float
    now: float
    is_share: bool
    change: float | None
    bound: float | None
    field: str

    @property
    def exceeded(self) -> bool:
        """Whether the change is beyond its bound."""
        # A millionth of slack: 0.12 - 0.1 is more than 0.02 in binary.
        return self.bound is not None and self.change is not None and self.change > self.bound + 1e-6


@dataclass(frozen=True)
class Drift:
    """The comparison of this run with the last published one."""

    last_run: str
    measures: tuple[Measure, ...]


def fill_share(statistics: Mapping[str, Any]) -> float | None:
    """Return the filled share of all bins of a run, or `None` if it has no bins.

    >>> fill_share({"splits": {"train": {"a": {"bins": 3, "packing_efficiency": 98.0}}}})
    0.98
    """
    entries = [entry for datasets in statistics.get("splits", {}).values() for entry in datasets.values()]
    bins = sum(entry["bins"] for entry in entries)
    if not bins:
        return None
    return float(sum(entry["packing_efficiency"] * entry["bins"] for entry in entries) / (100 * bins))


def last_published(output_dir: Path, run_hash: str) -> RunManifest | None:
    """Return the manifest `latest` leads to; `None` if there is none, or this very run was published before.

    Raises:
        IntegrityError: `latest` exists but does not lead to a readable manifest.
    """
    if (run_folder(output_dir, run_hash) / MANIFEST).is_file() or not os.path.lexists(output_dir / LATEST):
        return None
    return read_manifest((output_dir / LATEST).resolve())


def compare(
    last: RunManifest, ledger: RowLedger, statistics: Mapping[str, Any], alarms: RowAlarms | None
) -> Drift:
    """Compare the numbers of both runs, with the bounds that apply.

    Args:
        last: the last published run.
        ledger, statistics: of this run.

    Raises:
        IntegrityError: `bad_manifest`: the statistics of the last run are not those of its flow.
    """
    rows, rejects, fill = None, None, None
    if alarms is not None:
        rows = alarms.max_row_change
        rejects = alarms.max_reject_increase if isinstance(alarms, RejectAlarms) else None
        fill = alarms.max_fill_drop if isinstance(alarms, PackAlarms) else None
    before, now = _reject_share(last.ledger), _reject_share(ledger)
    measures = [
        _rows("rows in", last.ledger.rows_in, ledger.rows_in, rows),
        _rows("rows used", last.ledger.rows_used, ledger.rows_used, rows),
        Measure("rejected share", before, now, True, now - before, rejects, "max_reject_increase"),
    ]
    with statistics_faults(f"{RUNS}/{last.run_hash}/{MANIFEST}"):
        old_fill = fill_share(last.statistics)
    new_fill = fill_share(statistics)
    if old_fill is not None and new_fill is not None:
        drop = old_fill - new_fill
        measures.append(Measure("fill of the bins", old_fill, new_fill, True, drop, fill, "max_fill_drop"))
    return Drift(last.run_hash, tuple(measures))


def check_drift(drift: Drift | None) -> None:
    """Check that no bound is exceeded.

    Raises:
        IntegrityError: `drift`, listing every number that is out of bounds on one line.
    """
    exceeded = [measure for measure in drift.measures if measure.exceeded] if drift is not None else []
    if drift is None or not exceeded:
        return
    raise IntegrityError(
        f"{'; '.join(_told(measure) for measure in exceeded)}, since the last published run {drift.last_run}; "
        f"{_ACCEPT}",
        code="drift",
        where=f"alarms.{exceeded[0].field}",
    )


def _rows(name: str, before: int, now: int, bound: float | None) -> Measure:
    change = abs(now - before) / before if before else None
    return Measure(name, before, now, False, change, bound, "max_row_change")


def _reject_share(ledger: RowLedger) -> float:
    return ledger.rows_rejected / ledger.rows_in if ledger.rows_in else 0.0


def _told(measure: Measure) -> str:
    if measure.is_share:
        values = f"{measure.before:.2%} to {measure.now:.2%}"
        by = (
            f"{100 * (measure.change or 0):.2f} points, {measure.field} allows {100 * (measure.bound or 0):g}"
        )
    else:
        values = f"{measure.before:,} to {measure.now:,}"
        by = f"{measure.change:.1%}, {measure.field} allows {measure.bound:.1%}"
    return f"{measure.name} went from {values} ({by})"
