"""Write and read the manifest of a run: one parser, which refuses a manifest that is not as it was written.

A manifest has a digest of itself, `manifest_sha256`: SHA-256 of its canonical JSON without that key. Spaces and the
order of keys do not count, values do. Runs of earlier versions, format 1, have none.

Up to 20,000 outputs are in the manifest; more are in files beside it, `manifest-000000.json` and so on, whose digests
are in the manifest (`lists`). Whoever reads a manifest through this module sees all outputs in either case.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from pydantic_core import from_json

from schemas.canonical import canonical_json
from schemas.errors import IntegrityError
from schemas.run import MANIFEST_FORMAT, FileRecord, RunManifest
from tasks.run.layout import MANIFEST
from tasks.storage.reading import read_bytes

# Such a manifest is read in 0.05 s.
MOST_LISTED = 20_000
# More than any manifest or list has. To parse it takes ten times as much memory.
MOST_BYTES = 128 << 20

_DIGEST = "manifest_sha256"
# Texts and whole numbers, in which orjson and canonical JSON do not differ but for names beyond ASCII.
_LONG = ("links", "lists", "notes", "outputs", "stages")
_REPAIR = "run the flow's configuration again to repair it, or fetch the run again"


def sealed(manifest: RunManifest) -> RunManifest:
    """Return the manifest with the records of its lists and its digest."""
    manifest = manifest.model_copy(update={"lists": file_records(output_lists(manifest.outputs))})
    # Of what a reader will parse: JSON has fewer types than the model.
    fields = json.loads(_head(manifest).model_dump_json(exclude={_DIGEST}))
    return manifest.model_copy(update={_DIGEST: _digest(fields)})


def file_records(files: Mapping[str, bytes]) -> tuple[FileRecord, ...]:
    """Return the records of small files, whose content is given by path."""
    return tuple(
        FileRecord(path=name, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
        for name, content in files.items()
    )


def output_lists(outputs: Sequence[FileRecord]) -> dict[str, bytes]:
    """Return the files beside the manifest that list many outputs, by name; few outputs need none."""
    if len(outputs) <= MOST_LISTED:
        return {}
    firsts = range(0, len(outputs), MOST_LISTED)
    return {
        f"{Path(MANIFEST).stem}-{number:06d}.json": _format_list(outputs[first : first + MOST_LISTED])
        for number, first in enumerate(firsts)
    }


def _format_list(outputs: Sequence[FileRecord]) -> bytes:
    return b"[\n" + b",\n".join(record.model_dump_json().encode() for record in outputs) + b"\n]\n"


def _head(manifest: RunManifest) -> RunManifest:
    """Return what `manifest.json` has of a manifest: without the outputs that are in lists."""
    return manifest.model_copy(update={"outputs": ()}) if manifest.lists else manifest


def format_manifest(manifest: RunManifest) -> bytes:
    """Format a sealed manifest for people to read, too."""
    return _head(manifest).model_dump_json(indent=2).encode() + b"\n"


def parse_manifest(content: bytes, where: str, read: Callable[[str], bytes | None]) -> RunManifest:
    """Parse the manifest of a run.

    Args:
        read: returns a file beside the manifest by its name, `None` if it is not there.

    Raises:
        IntegrityError: `bad_manifest`: it is damaged, larger than 128 MiB, or written by a later version; `ledger`:
            its ledger does not add up.
    """
    if len(content) > MOST_BYTES:
        raise _bad(f"the manifest is larger than {MOST_BYTES >> 20} MiB, which no run's is; {_REPAIR}", where)
    try:
        # The digest needs the fields, and parsing twice takes twice as long.
        fields: dict[str, Any] = from_json(content, allow_inf_nan=False)
        manifest = RunManifest.model_validate(fields)
        fields.pop(_DIGEST, None)
        found = _quick_digest(fields) or _digest(fields)
        if found != manifest.manifest_sha256:
            found = _digest(fields)
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
    if manifest.lists:
        outputs = [record for listed in manifest.lists for record in _read_list(listed, read, where)]
        return manifest.model_copy(update={"outputs": tuple(outputs)})
    return manifest


def _read_list(listed: FileRecord, read: Callable[[str], bytes | None], where: str) -> Iterator[FileRecord]:
    place = f"{where.removesuffix(MANIFEST)}{listed.path}"
    content = read(listed.path) if "/" not in listed.path else None
    if content is None:
        raise _bad(f"this list of outputs, which the manifest names, is missing; {_REPAIR}", place)
    digest = hashlib.sha256(content).hexdigest()
    if digest != listed.sha256:
        raise _bad(
            f"this list of outputs is not as it was written: expected SHA-256 {listed.sha256}, found {digest}; "
            f"{_REPAIR}",
            place,
        )
    try:
        yield from (FileRecord.model_validate(fields) for fields in from_json(content))
    except (ValueError, TypeError, RecursionError) as error:
        raise _bad(f"this list of outputs cannot be read: {error}; {_REPAIR}", place) from error


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

    def read(name: str) -> bytes | None:
        try:
            return read_bytes(folder / name, MOST_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _bad(
                f"this list of outputs cannot be read: {error}; {_REPAIR}", str(folder / name)
            ) from error

    return parse_manifest(content, str(path), read)


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


def _digest(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(fields)).hexdigest()


def _quick_digest(fields: Mapping[str, Any]) -> str | None:
    """Return the digest in a tenth of the time if nothing in it is unusual, else another, or none."""

    def text(name: str, value: Any) -> bytes:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS) if name in _LONG else canonical_json(value)

    try:
        parts = [canonical_json(name) + b":" + text(name, fields[name]) for name in sorted(fields)]
    except TypeError:
        # A number that orjson does not write.
        return None
    return hashlib.sha256(b"{" + b",".join(parts) + b"}").hexdigest()


def _bad(message: str, where: str) -> IntegrityError:
    return IntegrityError(message, code="bad_manifest", where=where)
