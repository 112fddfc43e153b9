"""Account for the documents of a sample's sources, and check that enough are left.

A skipped file counts as one rejected row, because the number of its rows may be what could not be read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from schemas.corpus import CorpusDatasetConfig, SampleCorpusConfig
from schemas.errors import InputError
from schemas.run import Receipt, RowLedger
from tasks.corpus.inventory import Bucket
from tasks.corpus.publish import SampledBucket
from tasks.run.limits import check_rows, total_ledger


def check_screened(
    config: SampleCorpusConfig, buckets: Sequence[Bucket], screened: Sequence[Sequence[Receipt]]
) -> None:
    """Check that every data set has documents, and that enough of them may be sampled.

    Args:
        screened: the screen receipts of each bucket.

    Raises:
        InputError: `empty_input`: a data set has no documents, none may be sampled, or none are requested.
        IntegrityError: `reject_limit`: too many rows were rejected.
    """
    if not any(bucket.inputs.count for bucket in buckets):
        raise InputError(
            "every bucket has a count of 0, so the sample would be empty; request at least one document",
            code="empty_input",
            where="datasets",
        )
    for key, dataset in config.datasets.items():
        members = [
            (bucket, receipts)
            for bucket, receipts in zip(buckets, screened, strict=True)
            if bucket.inputs.key == key
        ]
        check_rows(
            RowLedger.total(screened_ledger(bucket, receipts) for bucket, receipts in members),
            [receipt for _, receipts in members for receipt in receipts],
            config.max_reject_fraction,
            Path(config.output_dir),
            f"datasets.{key}",
            f"the data set {dataset.source}{_filters(config, dataset)}",
        )


def _filters(config: SampleCorpusConfig, dataset: CorpusDatasetConfig) -> str:
    """Name the filters that may leave out rows, as the configuration has them; empty if there are none."""
    filters = {
        "where": dataset.where,
        "min_characters": config.min_characters,
        "max_characters": config.max_characters,
    }
    named = ", ".join(
        f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in filters.items() if value
    )
    return f" ({named})" if named else ""


def screened_ledger(bucket: Bucket, screened: Sequence[Receipt]) -> RowLedger:
    """Return the ledger of a bucket before selection; files that were not screened are used whole."""
    looked_at = total_ledger(screened)
    rest = bucket.rows - looked_at.rows_in
    skipped = dict(Counter(file.reason for file in bucket.skipped))
    return RowLedger.total(
        [
            looked_at,
            RowLedger(rows_in=rest, rows_used=rest),
            RowLedger(rows_in=sum(skipped.values()), rejected=skipped),
        ]
    )


def bucket_ledger(sampled: SampledBucket) -> RowLedger:
    """Return the ledger of a bucket that was written.

    Raises:
        IntegrityError: the counts of the stages disagree.
    """
    ledger = screened_ledger(sampled.selection.bucket, sampled.screened)
    if sampled.selection.receipt.ledger is not None:
        ledger = ledger.then(sampled.selection.receipt.ledger)
    return ledger.then(RowLedger(rows_in=sum(sampled.rows), rows_used=sum(sampled.rows)))
