"""Turn a trained tokenizer into the contents of a published run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from schemas.run import Receipt, RowLedger
from schemas.tokenizer import REPORT, TOKENIZER, TrainTokenizerConfig
from tasks.run.publish import Contents, json_document
from tasks.run.rejects import numbered, reject_files, reject_links


@dataclass(frozen=True)
class TrainedRun:
    """Hold a trained tokenizer; `ledger` covers the whole run."""

    config: TrainTokenizerConfig
    trained: Receipt
    ledger: RowLedger


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
        documents={REPORT: json_document(run.trained.statistics)},
        ledger=run.ledger,
        statistics={
            "vocabulary_size": run.trained.statistics["vocabulary_size"],
            "bytes_per_token": run.trained.statistics["buckets"],
        },
        stages={"train": run.trained.stage},
    )
