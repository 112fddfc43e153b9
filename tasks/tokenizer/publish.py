"""Turn a trained tokenizer into the contents of a published run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.run import Receipt, RowLedger
from schemas.tokenizer import REPORT, TOKENIZER, TrainTokenizerConfig
from tasks.run.publish import Contents, json_document
from tasks.run.rejects import numbered, reject_files, reject_links
from tasks.tokenizer.compare import with_comparison


@dataclass(frozen=True)
class TrainedRun:
    """Hold a trained tokenizer.

    Attributes:
        compared: receipt of the compared tokenizer, if there is one.
        ledger: row ledger of the whole run.
    """

    config: TrainTokenizerConfig
    trained: Receipt
    compared: tuple[Receipt, ...]
    ledger: RowLedger

    @property
    def buckets(self) -> list[dict[str, Any]]:
        """What was counted and measured, bucket by bucket."""
        return with_comparison(self.trained.statistics["buckets"], self.compared)


def contents(run: TrainedRun) -> Contents:
    """Return the tokenizer to publish."""
    rejects = set(reject_files(run.trained))
    return Contents(
        links={
            **{
                f"{TOKENIZER}/{Path(record.path).name}": record
                for record in run.trained.files
                if record not in rejects
            },
            **reject_links(numbered("sample", [run.trained])),
        },
        documents={REPORT: json_document({**run.trained.statistics, "buckets": run.buckets})},
        ledger=run.ledger,
        statistics={
            "vocabulary_size": run.trained.statistics["vocabulary_size"],
            "bytes_per_token": run.buckets,
        },
        stages={receipt.task: receipt.stage for receipt in (run.trained, *run.compared)},
    )
