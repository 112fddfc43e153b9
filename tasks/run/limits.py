"""Limit how few rows may come in and how many may be left out: the same for every flow.

A source without rows, one with no rows left, or one that rejects more than `max_reject_fraction` ends the run
before anything is published.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from schemas.errors import InputError, IntegrityError
from schemas.run import Receipt, RowLedger
from tasks.run.rejects import reject_files


def total_ledger(receipts: Iterable[Receipt]) -> RowLedger:
    """Add up the ledgers of receipts over disjoint rows."""
    return RowLedger.total(receipt.ledger for receipt in receipts if receipt.ledger is not None)


def check_rows(
    ledger: RowLedger, receipts: Sequence[Receipt], limit: float, output_dir: Path, where: str, what: str
) -> None:
    """Check that a source has rows, rejects no more than `limit` of them, and has some left.

    Args:
        ledger: of the source, so far.
        receipts: those whose reject files list the rejected rows.
        limit: `max_reject_fraction`, a share of 1.
        where: the configuration field that names the source.
        what: the source, for people.

    Raises:
        InputError: `empty_input`: there are no rows, or none are left.
        IntegrityError: `reject_limit`, with the reasons and where the rejected rows are listed.
    """
    if ledger.rows_in == 0:
        raise InputError(f"{what} has no rows; add some, or leave it out", code="empty_input", where=where)
    check_reject_limit(ledger, receipts, limit, output_dir, where)
    if ledger.rows_used == 0:
        left_out = (
            ("filtered", ledger.filtered),
            ("not selected", ledger.not_selected),
            ("duplicates", ledger.duplicates),
            ("rejected", ledger.rows_rejected),
        )
        counts = ", ".join(f"{rows} {how}" for how, rows in left_out if rows)
        raise InputError(
            f"no row of {what} is left: {counts} of {ledger.rows_in}{_listed(ledger, receipts, output_dir)}",
            code="empty_input",
            where=where,
        )


def check_reject_limit(
    ledger: RowLedger, receipts: Sequence[Receipt], limit: float, output_dir: Path, where: str
) -> None:
    """Check that no more than `limit` of the rows were rejected.

    Raises:
        IntegrityError: `reject_limit`, with the reasons and where the rejected rows are listed.
    """
    if ledger.rows_rejected > limit * ledger.rows_in:
        raise IntegrityError(
            f"{ledger.rows_rejected} of {ledger.rows_in} rows were rejected, more than max_reject_fraction "
            f"{limit:g} allows{_listed(ledger, receipts, output_dir)}",
            code="reject_limit",
            where=where,
        )


def _listed(ledger: RowLedger, receipts: Sequence[Receipt], output_dir: Path) -> str:
    """Name the reasons, most frequent first, and the files that list the rejected rows; empty without rejects."""
    if not ledger.rejected:
        return ""
    reasons = sorted(ledger.rejected.items(), key=lambda item: (-item[1], item[0]))
    told = ", ".join(f"{reason}: {rows}" for reason, rows in reasons)
    files = [record for receipt in receipts for record in reject_files(receipt)]
    if not files:
        return f" ({told})"
    more = f" and {len(files) - 1} more files" if len(files) > 1 else ""
    return f" ({told}); each row and reason is listed in {output_dir / files[0].path}{more}"
