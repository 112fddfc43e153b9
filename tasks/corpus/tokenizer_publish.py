"""A trained tokenizer, published."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import IntegrityError
from schemas.run import InputRecord, Receipt, RunManifest
from schemas.tokenizer import FLOW, PUBLISHED, REPORT, TOKENIZER
from tasks.store.environment import environment, versions
from tasks.store.fingerprint import check_unchanged
from tasks.store.publish import commit_run, fill_run, publishing


@dataclass(frozen=True)
class PublishTokenizerWork:
    """A trained tokenizer, ready to be seen; see `tasks.sft.publish.PublishWork`."""

    output_dir: str
    run_hash: str
    trained: Receipt
    config: str
    inputs: tuple[InputRecord, ...]
    seen: dict[str, list[int]]


def publish_tokenizer(work: PublishTokenizerWork) -> RunManifest:
    """Fill the run folder, write its manifest, move `latest`.

    Raises:
        InputError: the sample changed since it was hashed; nothing is published.
        StorageError: a file cannot be linked or written.
    """
    check_unchanged(work.seen)
    root = Path(work.output_dir)
    if work.trained.ledger is None:
        raise IntegrityError("the training receipt has no ledger", code="ledger")
    links = {f"{TOKENIZER}/{Path(record.path).name}": record for record in work.trained.files}
    documents = {REPORT: json.dumps(work.trained.statistics, indent=2).encode() + b"\n"}
    records = [record.model_dump() for record in work.inputs]
    notes = {
        "config.json": work.config.encode() + b"\n",
        "inputs.json": json.dumps(records, indent=2).encode() + b"\n",
    }
    with publishing(root, work.run_hash):
        outputs = fill_run(root, work.run_hash, links, {}, documents, notes)
        manifest = RunManifest(
            flow=FLOW,
            run_hash=work.run_hash,
            outputs=outputs,
            ledger=work.trained.ledger,
            statistics={
                "vocabulary_size": work.trained.statistics["vocabulary_size"],
                "bytes_per_token": work.trained.statistics["buckets"],
            },
            stages={"train": work.trained.stage},
            versions=versions(),
            environment=environment(),
        )
        commit_run(root, manifest, PUBLISHED)
    return manifest
