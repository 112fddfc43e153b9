"""Find and verify published runs without importing anything heavy."""

from __future__ import annotations

import contextlib
import posixpath
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from schemas.errors import InputError, IntegrityError
from schemas.run import FileRecord, Receipt, RunManifest
from tasks.run.layout import MANIFEST, run_folder
from tasks.run.receipts import Verify, verify_files
from tasks.storage.links import refuse_links
from tasks.storage.names import link_target
from tasks.storage.reading import read_bytes
from tasks.storage.remote import store_at


def read_manifest(folder: Path) -> RunManifest:
    """Read the manifest of a run folder.

    Raises:
        IntegrityError: it is missing, or is not a valid manifest.
    """
    path = folder / MANIFEST
    try:
        return RunManifest.model_validate_json(read_bytes(path))
    except FileNotFoundError:
        raise IntegrityError(
            "the run has no manifest; it is not complete", code="no_manifest", where=str(path)
        ) from None
    except IntegrityError as error:
        # The ledger does not add up.
        raise IntegrityError(error.message, code=error.code, where=str(path)) from None
    except (OSError, ValueError) as error:
        raise IntegrityError(
            f"the manifest cannot be read: {error}", code="bad_manifest", where=str(path)
        ) from error


def published_faults(
    folder: Path | str, manifest: RunManifest, verify: Verify, below: str = ""
) -> Iterator[IntegrityError]:
    """Yield an error for every output that is missing or has another size (or digest), and every wrong link.

    In a copy of a run links may have become files, as `cp -rL` and object stores make of them: what they hold counts.

    Args:
        folder: the run's folder, or its URI (text).
        below: take only what is published under this name at the top of the folder.
    """
    for record in manifest.outputs:
        if _is_below(record.path, below):
            yield from _faults(folder, record, verify)
    files: dict[str, list[FileRecord]] = defaultdict(list)
    for record in manifest.outputs:
        # A link leads to a file, or to the folder of a memmap shard.
        for place in (record.path, posixpath.dirname(record.path)):
            files[place].append(record)
    for name, target in manifest.links.items():
        if not _is_below(name, below):
            continue
        found = link_target(folder / name) if isinstance(folder, Path) else None
        original = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
        copies = [
            record.model_copy(update={"path": name + record.path.removeprefix(original)})
            for record in files[original]
            if found is None
        ]
        if found == target:
            continue
        faults = [fault for copy in copies for fault in _faults(folder, copy, verify)]
        # Nothing is there if each file of the copy is missing.
        if copies and [fault.code for fault in faults] != ["missing_output"] * len(copies):
            yield from faults
            continue
        yield IntegrityError(
            f"this should be a link to {target!r}, or a copy of what is there; run the flow again, or copy the run "
            "again with its links followed",
            code="missing_output",
            where=str(folder / name) if isinstance(folder, Path) else f"{folder}/{name}",
        )


def _is_below(name: str, top: str) -> bool:
    return not top or name == top or name.startswith(f"{top}/")


def _faults(folder: Path | str, record: FileRecord, verify: Verify) -> list[IntegrityError]:
    try:
        if isinstance(folder, Path):
            # `verify_files` takes the folder that the paths are relative to: for a manifest, the run folder.
            output = Receipt(task="publish", stage="", part=0, files=(record,))
            verify_files(output, folder, verify)
        else:
            _verify_stored(f"{folder}/{record.path}", record, verify)
    except IntegrityError as error:
        return [error]
    return []


def _verify_stored(uri: str, record: FileRecord, verify: Verify) -> None:
    store, path = store_at(uri)
    try:
        found = store.bytes(path) if verify is not Verify.OFF else record.bytes
        digest = store.sha256(path) if verify is Verify.SHA256 and found == record.bytes else record.sha256
    except FileNotFoundError:
        raise IntegrityError(
            f"an output is missing: expected {record.bytes:,} bytes, found no file",
            code="missing_output",
            where=uri,
        ) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error}", code="unreadable", where=uri) from error
    if (found, digest) != (record.bytes, record.sha256):
        raise IntegrityError(
            f"an output changed: expected {record.bytes:,} bytes with SHA-256 {record.sha256}, "
            f"found {found:,} bytes" + (f" with {digest}" if digest != record.sha256 else ""),
            code="changed_output",
            where=uri,
        )


def check_published(folder: Path, manifest: RunManifest, verify: Verify) -> None:
    """Check that every output has its size (or digest) and every link its target.

    Raises:
        IntegrityError: naming the first file that differs from the manifest.
    """
    for fault in published_faults(folder, manifest, verify):
        raise fault


def completed_run(output_dir: Path, run_hash: str, verify: Verify) -> RunManifest | None:
    """Return the manifest of this run if it is complete and its published files verify, else `None`.

    Raises:
        ConfigError: `foreign_output`: its folder is a link, so it could not be repaired either.
    """
    folder = run_folder(output_dir, run_hash)
    refuse_links(folder)
    with contextlib.suppress(IntegrityError):
        manifest = read_manifest(folder)
        if manifest.run_hash == run_hash:
            check_published(folder, manifest, verify)
            return manifest
    return None
