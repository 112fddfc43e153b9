"""Account for the measurements of a run, and check that enough are left."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from schemas.errors import IntegrityError
from schemas.probes import TRAIN, BuildProbeRowsConfig
from schemas.run import Receipt, RowLedger
from tasks.probes.gather import GatherJob
from tasks.run.limits import check_rows, total_ledger


def input_ledger(config: BuildProbeRowsConfig, scattered: Sequence[Receipt]) -> RowLedger:
    """Return the ledger of the first pass.

    Raises:
        InputError: `empty_input`: the input has no rows, or none are left.
        IntegrityError: `reject_limit`: too many rows were rejected.
    """
    ledger = total_ledger(scattered)
    root = Path(config.output_dir)
    check_rows(ledger, scattered, config.max_reject_fraction, root, "input", "the input")
    return ledger


def check_train(jobs: Sequence[GatherJob]) -> None:
    """Check that there is something to train on.

    Raises:
        IntegrityError: `empty_train`: no probe is in the train split.
    """
    if not any(job.shard.split == TRAIN for job in jobs):
        raise IntegrityError(
            "the train split is empty: every probe fell into test; use more data, or a larger train_ratio",
            code="empty_train",
            where="train_ratio",
        )


def run_ledger(scattered: RowLedger, gathered: Sequence[Receipt]) -> RowLedger:
    """Return the ledger of the whole run.

    Raises:
        IntegrityError: the shards together do not contain exactly the rows that were scattered.
    """
    return scattered.then(total_ledger(gathered))
