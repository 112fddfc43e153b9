"""Account for the rows of a sample, and check that enough are left to train on."""

from __future__ import annotations

from pathlib import Path

from schemas.run import Receipt, RowLedger
from schemas.tokenizer import TrainTokenizerConfig
from tasks.run.limits import check_rows, total_ledger


def run_ledger(config: TrainTokenizerConfig, trained: Receipt) -> RowLedger:
    """Return the ledger of the run.

    Raises:
        InputError: `empty_input`: the sample has no rows, or none are left to train on.
        IntegrityError: `reject_limit`: too many rows were rejected.
    """
    ledger = total_ledger([trained])
    root = Path(config.output_dir)
    what = f"the sample {config.sample}"
    check_rows(ledger, [trained], config.max_reject_fraction, root, "sample", what)
    return ledger
