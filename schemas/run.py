"""Records of a run: receipts, the row ledger and the manifest.

A receipt is what a task returns and Prefect persists: the files it wrote, with size and digest, its ledger
and its statistics. It never contains data, and its paths are relative to the output directory, so a moved
output directory keeps every cached result.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from schemas.errors import IntegrityError

RECEIPT_FORMAT = 1
# 2: notes, and a digest of its own.
MANIFEST_FORMAT = 2


class Record(BaseModel):
    """A frozen record that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class FileRecord(Record):
    """A complete file: its path relative to the folder its owner names, its size and digest."""

    path: str
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class RowLedger(Record):
    """Where every input row went.

    Invariant: `rows_in == rows_used + not_selected + filtered + duplicates + sum(rejected)`.

    >>> RowLedger(rows_in=3, rows_used=2, rejected={"no_messages": 1}).rows_rejected
    1
    """

    rows_in: int = Field(default=0, ge=0)
    rows_used: int = Field(default=0, ge=0)
    not_selected: int = Field(default=0, ge=0)
    filtered: int = Field(default=0, ge=0)
    duplicates: int = Field(default=0, ge=0)
    rejected: dict[str, int] = Field(default_factory=dict)

    @property
    def rows_rejected(self) -> int:
        return sum(self.rejected.values())

    @property
    def accounted(self) -> int:
        """Rows on the right-hand side of the invariant."""
        return self.rows_used + self.not_selected + self.filtered + self.duplicates + self.rows_rejected

    @model_validator(mode="after")
    def _adds_up(self) -> RowLedger:
        if self.rows_in != self.accounted:
            # Not a ValueError: pydantic would wrap it, and a broken ledger must reach the exit code 3.
            raise IntegrityError(
                f"the row ledger does not add up: {self.rows_in} rows in, {self.accounted} accounted for "
                f"(used {self.rows_used}, not selected {self.not_selected}, filtered {self.filtered}, "
                f"duplicates {self.duplicates}, rejected {self.rejected})",
                code="ledger",
            )
        return self

    @staticmethod
    def total(ledgers: Iterable[RowLedger]) -> RowLedger:
        """Add up ledgers over disjoint rows."""
        sums: dict[str, int] = {}
        rejected: dict[str, int] = {}
        for ledger in ledgers:
            for name in ("rows_in", "rows_used", "not_selected", "filtered", "duplicates"):
                sums[name] = sums.get(name, 0) + getattr(ledger, name)
            for reason, rows in ledger.rejected.items():
                rejected[reason] = rejected.get(reason, 0) + rows
        return RowLedger(**sums, rejected=dict(sorted(rejected.items())))

    def then(self, later: RowLedger) -> RowLedger:
        """Combine this stage with `later`, whose input is exactly the rows used here.

        Raises:
            IntegrityError: `ledger`, the later stage received another number of rows.
        """
        if later.rows_in != self.rows_used:
            raise IntegrityError(
                f"a stage received {later.rows_in} rows, but the stage before it passed on {self.rows_used}",
                code="ledger",
            )
        rejected = dict(self.rejected)
        for reason, rows in later.rejected.items():
            rejected[reason] = rejected.get(reason, 0) + rows
        return RowLedger(
            rows_in=self.rows_in,
            rows_used=later.rows_used,
            not_selected=self.not_selected + later.not_selected,
            filtered=self.filtered + later.filtered,
            duplicates=self.duplicates + later.duplicates,
            rejected=dict(sorted(rejected.items())),
        )


class Receipt(Record):
    """What one task did. Paths in `files` are relative to the output directory."""

    format: int = RECEIPT_FORMAT
    task: str
    stage: str
    part: int = Field(ge=0)
    files: tuple[FileRecord, ...] = ()
    ledger: RowLedger | None = None
    statistics: dict[str, Any] = Field(default_factory=dict)


class InputRecord(Record):
    """The fingerprint of one input file."""

    source: str
    path: str
    bytes: int
    digest: str


class RunManifest(Record):
    """The last file written to a run folder: what the run contains, and what it was made from.

    Attributes:
        outputs: the data, relative to the run folder; `links`: symbolic links among them.
        lists: the files that list the outputs where these are many; `manifest.json` itself has none of them then.
        notes: the files about the run: configuration, inputs, report. Two runs of one configuration over the same
            bytes may differ in them and in `environment`, which say where and how it was executed, but in nothing
            else. While a note is replaced it has two records; it is in order if it is as one of them says.
        manifest_sha256: digest of the manifest itself, see `tasks.run.manifest`; empty before it is sealed.
    """

    format: int = MANIFEST_FORMAT
    flow: str
    run_hash: str
    outputs: tuple[FileRecord, ...]
    lists: tuple[FileRecord, ...] = ()
    notes: tuple[FileRecord, ...] = ()
    links: dict[str, str] = Field(default_factory=dict)
    ledger: RowLedger
    statistics: dict[str, Any]
    stages: dict[str, str]
    warnings: tuple[str, ...] = ()
    versions: dict[str, str]
    environment: dict[str, Any]
    manifest_sha256: str = ""

    @property
    def is_proven(self) -> bool:
        """Whether it has a digest of its own and records notes; those of earlier versions do not."""
        return self.format > 1 or bool(self.manifest_sha256)
