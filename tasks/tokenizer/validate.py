"""Validate a train-tokenizer run: its tokenizer must load, with the vocabulary that its manifest names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from schemas.run import Receipt, RunManifest
from schemas.tokenizer import TOKENIZER
from schemas.verdict import Fault, Verdict
from tasks.run.layout import stage_folder
from tasks.storage.reading import parse_json, read_bytes

_FILE = "tokenizer.json"


@dataclass(frozen=True)
class ValidateJob:
    """Validate a trained tokenizer before it is published."""

    output_dir: str
    trained: Receipt


def check_written(job: ValidateJob) -> Verdict:
    """Check, before a tokenizer is published, that it has the vocabulary that its receipt says.

    Raises:
        IntegrityError: it cannot be read, or has another vocabulary.
    """
    folder = stage_folder(Path(job.output_dir), job.trained.stage)
    verdict = _check(folder / _FILE, job.trained.statistics["vocabulary_size"])
    verdict.raise_if_bad()
    return verdict


def validate_tokenizer(folder: Path, manifest: RunManifest, full: bool) -> Verdict:
    """Count the tokens of a run's `tokenizer.json`; `full` makes no difference."""
    verdict = _check(folder / TOKENIZER / _FILE, manifest.statistics.get("vocabulary_size"))
    return verdict.model_copy(update={"path": str(folder)})


def _check(path: Path, expected: int | None) -> Verdict:
    try:
        description = parse_json(read_bytes(path))
        vocabulary = description["model"]["vocab"]
        ids = {
            # A list of pieces and scores for the model unigram.
            *(vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))),
            *(token["id"] for token in description["added_tokens"]),
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        fault = Fault(where=str(path), rule="readable", detail=f"not a readable tokenizer: {error}")
        return Verdict(path=str(path), kind="run", faults=(fault,))
    faults = []
    if len(ids) != expected or ids != set(range(len(ids))):
        detail = (
            f"{len(ids)} distinct ids up to {max(ids, default=-1)}; expected {expected} ids that start at 0"
        )
        faults.append(Fault(where=str(path), rule="vocabulary", detail=detail))
    return Verdict(path=str(path), kind="run", counts={"tokens": len(ids)}, faults=tuple(faults))
