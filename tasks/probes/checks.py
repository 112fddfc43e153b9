"""Totals that must agree before probe rows may be published."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from schemas.errors import InputError, IntegrityError
from schemas.probes import TRAIN
from schemas.run import Receipt, RowLedger
from tasks.probes.gather import GatherWork
from tasks.probes.scatter import REJECTS


def check_rejects(receipts: Sequence[Receipt], limit: float, output_dir: Path) -> RowLedger:
    """The ledger of the first pass, if it rejected no more than `limit` of the rows and something is left.

    Raises:
        IntegrityError: `reject_limit`, with the reasons and where the rejected rows are listed.
        InputError: `empty_input`: no row is left.
    """
    ledger = RowLedger.total(receipt.ledger for receipt in receipts if receipt.ledger is not None)
    if ledger.rows_rejected > limit * ledger.rows_in:
        raise IntegrityError(
            f"{ledger.rows_rejected} of {ledger.rows_in} rows were rejected, more than max_reject_fraction "
            f"{limit:g} allows{_listed(ledger, receipts, output_dir)}",
            code="reject_limit",
            where="input",
        )
    if ledger.rows_used == 0:
        raise InputError(
            f"no measurement is left of {ledger.rows_in} rows{_listed(ledger, receipts, output_dir)}",
            code="empty_input",
            where="input",
        )
    return ledger


def _listed(ledger: RowLedger, receipts: Sequence[Receipt], output_dir: Path) -> str:
    """The reasons, most frequent first, and the files that list every rejected row; empty if none was."""
    if not ledger.rejected:
        return ""
    reasons = sorted(ledger.rejected.items(), key=lambda item: (-item[1], item[0]))
    files = [record.path for receipt in receipts for record in receipt.files if record.path.endswith(REJECTS)]
    more = f" and {len(files) - 1} more files" if len(files) > 1 else ""
    return (
        f" ({', '.join(f'{reason}: {rows}' for reason, rows in reasons)}); each row and reason is listed in "
        f"{output_dir / files[0]}{more}"
    )


def check_train(works: Sequence[GatherWork]) -> None:
    """Fail when there is nothing to train on.

    Raises:
        IntegrityError: `empty_train`.
    """
    if not any(shard.split == TRAIN for work in works for shard in work.shards):
        raise IntegrityError(
            "the train split is empty: every probe fell into test; use more data, or a larger train_ratio",
            code="empty_train",
            where="train_ratio",
        )


def run_ledger(scattered: RowLedger, gathered: Sequence[Receipt]) -> RowLedger:
    """The ledger of the whole run.

    Raises:
        IntegrityError: the shards together do not hold exactly the rows that were scattered.
    """
    return scattered.then(
        RowLedger.total(receipt.ledger for receipt in gathered if receipt.ledger is not None)
    )
