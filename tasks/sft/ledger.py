"""Account for the rows of a packing run, and check that enough of them are left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from schemas.errors import IntegrityError
from schemas.run import Receipt, RowLedger
from schemas.sft import PackSftConfig
from tasks.run.limits import check_reject_limit, check_rows, total_ledger
from tasks.sft.packed import PackedSplit


def dataset_ledgers(config: PackSftConfig, spools: Mapping[str, Sequence[Receipt]]) -> dict[str, RowLedger]:
    """Return the ledger of each data set after tokenizing, by name.

    Raises:
        InputError: a data set has no rows, or none are left.
        IntegrityError: `reject_limit`.
    """
    ledgers = {}
    for dataset in config.datasets:
        receipts = spools[dataset.name]
        ledgers[dataset.name] = total_ledger(receipts)
        check_rows(
            ledgers[dataset.name],
            receipts,
            config.max_reject_fraction,
            Path(config.output_dir),
            f"datasets.{dataset.name}",
            f"the data set {dataset.path}",
        )
    return ledgers


def run_ledger(
    config: PackSftConfig,
    tokenized: Mapping[str, RowLedger],
    made: Sequence[PackedSplit],
) -> RowLedger:
    """Return the ledger of the whole run: tokenizing followed by packing, for each data set.

    Raises:
        IntegrityError: the splits together do not have exactly the rows that were tokenized; or `reject_limit`,
            if the rows that packing left out put a data set over the limit.
    """
    total = []
    for name, ledger in tokenized.items():
        receipts = [receipt for entry in made if entry.dataset == name for receipt in entry.receipts]
        packed = ledger.then(total_ledger(receipts))
        if packed.rows_rejected > ledger.rows_rejected:
            check_reject_limit(
                packed, receipts, config.max_reject_fraction, Path(config.output_dir), f"datasets.{name}"
            )
        left = sum(entry.not_selected for entry in made if entry.dataset == name)
        mixed = RowLedger(rows_in=packed.rows_used, rows_used=packed.rows_used - left, not_selected=left)
        total.append(packed.then(mixed))
    return RowLedger.total(total)


def check_splits(packed: Sequence[PackedSplit]) -> None:
    """Fail if there is nothing to train on.

    Raises:
        IntegrityError: `empty_train`.
    """
    if not any(entry.split == "train" for entry in packed):
        raise IntegrityError(
            "the train split is empty: all conversations fell into other splits or were left out; use more "
            "data or increase splits.train",
            code="empty_train",
            where="splits.train",
        )
