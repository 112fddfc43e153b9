"""Totals that must agree before a run may be published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from schemas.errors import InputError, IntegrityError
from schemas.run import Receipt, RowLedger
from schemas.sft import DatasetConfig
from schemas.verdict import Verdict
from tasks.sft.publish import PackedSplit
from tasks.sft.stages import SplitPlan

REJECTS = "rejects.parquet"


def check_rejects(
    dataset: DatasetConfig, receipts: Sequence[Receipt], limit: float, output_dir: Path
) -> RowLedger:
    """The ledger of a data set, if it holds rows and rejects no more than `limit` of them.

    Raises:
        InputError: the data set has no rows, or its row filter keeps none.
        IntegrityError: `reject_limit`, with the reasons and where the rejected rows are listed.
    """
    ledger = RowLedger.total(receipt.ledger for receipt in receipts if receipt.ledger is not None)
    where = f"datasets.{dataset.name}"
    if ledger.rows_in == 0:
        raise InputError(f"the data set has no rows: {dataset.path}", code="empty_input", where=where)
    _check_limit(ledger, receipts, limit, output_dir, where)
    if ledger.rows_used == 0:
        raise InputError(
            f"no row of {dataset.path} is left: {ledger.filtered} filtered, {ledger.rows_rejected} rejected of "
            f"{ledger.rows_in}{_listed(ledger, receipts, output_dir)}",
            code="empty_input",
            where=where,
        )
    return ledger


def _check_limit(
    ledger: RowLedger, receipts: Sequence[Receipt], limit: float, output_dir: Path, where: str
) -> None:
    if ledger.rows_rejected > limit * ledger.rows_in:
        raise IntegrityError(
            f"{ledger.rows_rejected} of {ledger.rows_in} rows were rejected, more than max_reject_fraction "
            f"{limit:g} allows{_listed(ledger, receipts, output_dir)}",
            code="reject_limit",
            where=where,
        )


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


def run_ledger(
    tokenized: Mapping[str, RowLedger],
    plans: Sequence[SplitPlan],
    planned: Sequence[Receipt],
    limit: float,
    output_dir: Path,
) -> RowLedger:
    """The ledger of the whole run: tokenizing followed by packing, data set by data set.

    Raises:
        IntegrityError: the splits together do not hold exactly the rows that were tokenized; or `reject_limit`,
            when what packing left out brings a data set over the limit.
    """
    total = []
    for name, ledger in tokenized.items():
        receipts = [
            receipt for plan, receipt in zip(plans, planned, strict=True) if plan.dataset.name == name
        ]
        packed = ledger.then(
            RowLedger.total(receipt.ledger for receipt in receipts if receipt.ledger is not None)
        )
        if packed.rows_rejected > ledger.rows_rejected:
            _check_limit(packed, receipts, limit, output_dir, f"datasets.{name}")
        total.append(packed)
    return RowLedger.total(total)


def check_splits(packed: Sequence[PackedSplit]) -> None:
    """Fail when nothing is left to train on.

    Raises:
        IntegrityError: `empty_train`.
    """
    if not any(entry.split == "train" for entry in packed):
        raise IntegrityError(
            "the train split is empty: every conversation fell into another split or was left out; use more "
            "data, or a larger splits.train",
            code="empty_train",
            where="splits.train",
        )


def check_totals(packed: Sequence[PackedSplit], verdict: Verdict) -> None:
    """The shards as read back hold exactly what was planned and what was written.

    Raises:
        IntegrityError: naming the total that differs.
    """
    for name in ("bins", "sequences", "tokens"):
        planned = sum(int(entry.plan.statistics[name]) for entry in packed)
        written = sum(int(shard.statistics[name]) for entry in packed for shard in entry.shards)
        found = verdict.counts.get(name, 0)
        if not planned == written == found:
            raise IntegrityError(
                f"{name} do not agree: {planned} planned, {written} written, {found} read back", code="totals"
            )
    written = sum(int(shard.statistics["trained_tokens"]) for entry in packed for shard in entry.shards)
    found = verdict.counts.get("trained_tokens", 0)
    if written != found:
        raise IntegrityError(f"trained tokens: {written} written, {found} read back", code="totals")
