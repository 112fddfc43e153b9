"""Write and read the manifest of a run: one parser, which refuses a manifest that is not as it was written.

A manifest has a digest of itself, `manifest_sha256`: SHA-256 of its canonical JSON without that key. Spaces and the
order of keys do not count, values do. Runs of earlier versions, format 1, have none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from schemas.canonical import canonical_json
from schemas.errors import IntegrityError
from schemas.run import MANIFEST_FORMAT, RunManifest
from tasks.run.layout import MANIFEST
from tasks.storage.reading import read_bytes

# About 750,000 files. To parse it takes ten times as much memory.
MOST_BYTES = 128 << 20

_DIGEST = "manifest_sha256"
_REPAIR = "run the flow's configuration again to repair it, or fetch the run again"


def sealed(manifest: RunManifest) -> RunManifest:
    """Return the manifest with its digest."""
    # Of what a reader will parse: JSON has fewer types than the model.
    fields = json.loads(manifest.model_dump_json(exclude={_DIGEST}))
    return manifest.model_copy(update={_DIGEST: _digest(fields)})


def format_manifest(manifest: RunManifest) -> bytes:
    """Format a sealed manifest for people to read, too."""
    return manifest.model_dump_json(indent=2).encode() + b"\n"


def parse_manifest(content: bytes, where: str) -> RunManifest:
    """Parse the manifest of a run.

    Raises:
        IntegrityError: `bad_manifest`: it is damaged, larger than 128 MiB, or written by a later version; `ledger`:
            its ledger does not add up.
    """
    if len(content) > MOST_BYTES:
        raise _bad(f"the manifest is larger than {MOST_BYTES >> 20} MiB, which no run's is; {_REPAIR}", where)
    try:
        manifest = RunManifest.model_validate_json(content)
        fields: dict[str, Any] = json.loads(content)
        found = _digest({name: value for name, value in fields.items() if name != _DIGEST})
    except IntegrityError as error:
        raise IntegrityError(error.message, code=error.code, where=where) from None
    except (ValueError, RecursionError) as error:
        raise _bad(f"the manifest cannot be read: {error}; {_REPAIR}", where) from error
    if manifest.format > MANIFEST_FORMAT:
        raise _bad(
            f"the manifest has format {manifest.format}; this version reads up to {MANIFEST_FORMAT}: update it",
            where,
        )
    if manifest.is_proven and manifest.manifest_sha256 != found:
        said = manifest.manifest_sha256 or "missing"
        raise _bad(
            f"the manifest is not as it was written: its manifest_sha256 is {said}, its content gives {found}; "
            f"{_REPAIR}",
            where,
        )
    return manifest


def read_manifest(folder: Path) -> RunManifest:
    """Read the manifest of a run folder.

    Raises:
        IntegrityError: `no_manifest`: it is missing; otherwise as `parse_manifest`.
    """
    path = folder / MANIFEST
    try:
        content = read_bytes(path, MOST_BYTES + 1)
    except FileNotFoundError:
        raise IntegrityError(
            "the run has no manifest; it is not complete", code="no_manifest", where=str(path)
        ) from None
    except OSError as error:
        raise _bad(f"the manifest cannot be read: {error}; {_REPAIR}", str(path)) from error
    return parse_manifest(content, str(path))


@contextmanager
def statistics_faults(where: str) -> Iterator[None]:
    """Turn the errors of reading a manifest's statistics, which only their flow knows, into one readable error.

    Raises:
        IntegrityError: `bad_manifest`: they lack something, or have another type.
    """
    try:
        yield
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise _bad(
            f"the statistics in the manifest are not those of its flow ({type(error).__name__}: {error}); run its "
            "configuration again with --force to repair it",
            where,
        ) from error


def _digest(fields: dict[str, Any]) -> str:
    return hashlib.sha256(canonical_json(fields)).hexdigest()


def _bad(message: str, where: str) -> IntegrityError:
    return IntegrityError(message, code="bad_manifest", where=where)
