"""A trained tokenizer, published."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from schemas.errors import IntegrityError
from schemas.run import InputRecord, Receipt
from schemas.tokenizer import FLOW, PUBLISHED, REPORT, TOKENIZER, TrainTokenizerConfig
from tasks.run.publish import Publication, json_document


@dataclass(frozen=True)
class TrainedRun:
    """A trained tokenizer; see `tasks.sft.publish.PackedRun`."""

    config: TrainTokenizerConfig
    run_hash: str
    trained: Receipt
    inputs: tuple[InputRecord, ...]
    seen: dict[str, list[int]]


def publication(run: TrainedRun) -> Publication:
    """The tokenizer as it is to be published.

    Raises:
        IntegrityError: the training receipt has no ledger.
    """
    if run.trained.ledger is None:
        raise IntegrityError("the training receipt has no ledger", code="ledger")
    return Publication(
        flow=FLOW,
        published=PUBLISHED,
        output_dir=run.config.output_dir,
        run_hash=run.run_hash,
        links={f"{TOKENIZER}/{Path(record.path).name}": record for record in run.trained.files},
        documents={REPORT: json_document(run.trained.statistics)},
        ledger=run.trained.ledger,
        statistics={
            "vocabulary_size": run.trained.statistics["vocabulary_size"],
            "bytes_per_token": run.trained.statistics["buckets"],
        },
        stages={"train": run.trained.stage},
        config=run.config.model_dump_json(indent=2),
        inputs=run.inputs,
        seen=run.seen,
    )
