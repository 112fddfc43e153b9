"""Where the rows went, and whether enough is left."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from contract.word_counts.schema import CountWordsConfig

from schemas.run import Receipt, RowLedger
from tasks.run.limits import check_rows, total_ledger


def run_ledger(config: CountWordsConfig, counted: Sequence[Receipt]) -> RowLedger:
    """The ledger of the run."""
    ledger = total_ledger(counted)
    root = Path(config.output_dir)
    check_rows(ledger, counted, config.max_reject_fraction, root, "input", "the input")
    return ledger
