"""What a train-tokenizer run must keep: a tokenizer that loads, with the vocabulary its manifest names."""

from __future__ import annotations

import json
from pathlib import Path

from schemas.run import RunManifest
from schemas.tokenizer import TOKENIZER
from schemas.verdict import Fault, Verdict


def validate_tokenizer(folder: Path, manifest: RunManifest, full: bool) -> Verdict:
    """Count the tokens of `tokenizer.json`; `full` makes no difference."""
    path = folder / TOKENIZER / "tokenizer.json"
    try:
        description = json.loads(path.read_bytes())
        ids = {
            *description["model"]["vocab"].values(),
            *(token["id"] for token in description["added_tokens"]),
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        fault = Fault(where=str(path), rule="readable", detail=f"not a readable tokenizer: {error}")
        return Verdict(path=str(folder), kind="run", faults=(fault,))
    expected = manifest.statistics.get("vocabulary_size")
    faults = []
    if len(ids) != expected or ids != set(range(len(ids))):
        detail = f"{len(ids)} distinct ids up to {max(ids, default=-1)}; the manifest says {expected} from 0"
        faults.append(Fault(where=str(path), rule="vocabulary", detail=detail))
    return Verdict(path=str(folder), kind="run", counts={"tokens": len(ids)}, faults=tuple(faults))
