"""Alarms: how far a run may drift from the last published one before it is held back.

They only affect execution: they decide whether a run is published, never what it produces.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from schemas.config import Config, execution_only


def _bound(default: float, most: float, title: str, description: str) -> Any:
    """Declare a bound on drift, between 0 and `most`."""
    return Field(default, ge=0, le=most, title=title, description=f"{description} Leave empty to disable.")


class RowAlarms(Config):
    """Bounds on a flow that counts rows."""

    max_row_change: float | None = _bound(
        0.25,
        1_000_000,
        "Largest change in rows",
        "Relative change, up or down, in the rows read or used; 0.25 is a quarter.",
    )


class RejectAlarms(RowAlarms):
    """Bounds on a flow that can reject rows."""

    max_reject_increase: float | None = _bound(
        0.02,
        1,
        "Largest increase in rejects",
        "How far the share of rejected rows may rise; 0.02 is two percentage points.",
    )


class PackAlarms(RejectAlarms):
    """Bounds on a flow that fills bins."""

    max_fill_drop: float | None = _bound(
        0.02,
        1,
        "Largest drop in fill",
        "How far the filled share of the bins may fall; 0.02 is two percentage points.",
    )


def alarms_field() -> Any:
    """Declare `alarms`, the bounds on drift from the last published run."""
    return execution_only(
        None,
        title="Alarms",
        description="How far a run may drift from the last published one; a run that drifts further fails, and the "
        "old one stays published. Leave empty to disable.",
    )
