"""Alarms: how far a run may drift from the last published one before it is held back.

They are execution-only: they decide whether a run is published, never what it produces.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from schemas.config import Config, execution_only


class RowAlarms(Config):
    """Bounds on a flow that counts rows."""

    max_row_change: float | None = Field(
        0.25,
        ge=0,
        le=1_000_000,
        title="Most change of rows",
        description="Relative change, up or down, of the rows read or used; 0.25 is a quarter. Empty: not looked at.",
    )


class RejectAlarms(RowAlarms):
    """Bounds on a flow that can reject rows."""

    max_reject_increase: float | None = Field(
        0.02,
        ge=0,
        le=1,
        title="Most increase of rejects",
        description="By how much the share of rejected rows may rise; 0.02 is two percentage points. Empty: not "
        "looked at.",
    )


class PackAlarms(RejectAlarms):
    """Bounds on a flow that fills bins."""

    max_fill_drop: float | None = Field(
        0.02,
        ge=0,
        le=1,
        title="Most drop of fill",
        description="By how much the filled share of the bins may fall; 0.02 is two percentage points. Empty: not "
        "looked at.",
    )


def alarms_field() -> Any:
    """The field `alarms` of a flow's configuration."""
    return execution_only(
        None,
        title="Alarms",
        description="How far a run may drift from the last published one; beyond, it fails and the old run stays "
        "published. Empty: no alarms.",
    )
