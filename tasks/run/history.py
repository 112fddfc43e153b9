"""Find and verify published runs without importing anything heavy."""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from schemas.errors import InputError, IntegrityError
from schemas.run import FileRecord, Receipt, RunManifest
from tasks.run.layout import MANIFEST, NOTES, run_folder
from tasks.run.manifest import read_manifest
from tasks.run.receipts import Verify, verify_files
from tasks.storage.atomic import TEMP_PREFIX
from tasks.storage.links import refuse_links
from tasks.storage.listing import walk
from tasks.storage.names import link_target
from tasks.storage.remote import store_at


def published_faults(
    folder: Path | str, manifest: RunManifest, verify: Verify, below: str = ""
) -> Iterator[IntegrityError]:
    """Yield an error for every file that is missing or has another size (or digest), and every wrong link.

    In a copy of a run links may have become files, as `cp -rL` and object stores make of them: what they hold counts.

    Args:
        folder: the run's folder, or its URI (text).
        below: take only what is published under this name at the top of the folder.
    """
    for record in manifest.outputs:
        if _is_below(record.path, below):
            yield from _faults(folder, record, verify)
    notes: dict[str, list[FileRecord]] = defaultdict(list)
    for record in manifest.notes if not below else ():
        notes[record.path].append(record)
    for records in notes.values():
        found_faults = [_faults(folder, record, verify) for record in records]
        if all(found_faults):
            yield from found_faults[0]
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


def pointer_faults(output_dir: Path, published: Mapping[str, str]) -> Iterator[IntegrityError]:
    """Yield an error for every name at the top of an output folder that is missing, or a link to something else.

    A copy of what is published may be in place of a link; its files are checked with `published_faults`.

    Args:
        published: link target of each name.
    """
    for name, target in published.items():
        path = output_dir / name
        found = link_target(path)
        if found != target and (found is not None or not os.path.lexists(path)):
            what = f"the link to {target!r} is missing"
            if found is not None:
                what = f"this is a link to {found!r}, not to {target!r}; remove it"
            yield IntegrityError(
                f"{what}; run the flow again, which makes it",
                code="missing_output",
                where=str(path),
            )


def unlisted_files(folder: Path, manifest: RunManifest) -> Iterator[IntegrityError]:
    """Yield an error for every file in a run's folder that its manifest does not name.

    Excepted are files that are being written, or were when a process was killed: the next publication removes them.
    """
    # Earlier versions wrote the notes too, but did not record them.
    notes = {record.path for record in manifest.notes} if manifest.is_proven else set(NOTES)
    files = (*manifest.lists, *manifest.outputs)
    named = {MANIFEST, *notes, *manifest.links, *(record.path for record in files)}
    for path in walk(folder):
        name = path.relative_to(folder).as_posix()
        if name in named or path.name.startswith(TEMP_PREFIX) or (path.is_dir() and not path.is_symlink()):
            continue
        # A copy of what a link leads to; its files are checked as such.
        if named.isdisjoint(str(parent) for parent in PurePosixPath(name).parents):
            yield IntegrityError(
                "the manifest does not name this file, so nothing proves it; move it out of the run's folder",
                code="unlisted_file",
                where=str(path),
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
    """Check that every file has its size (or digest) and every link its target.

    Raises:
        IntegrityError: naming the first file that differs from the manifest.
    """
    for fault in published_faults(folder, manifest, verify):
        raise fault


def completed_run(output_dir: Path, run_hash: str, verify: Verify) -> RunManifest | None:
    """Return the manifest of this run if it is complete and its published files verify, else `None`.

    Raises:
        ConfigError: `foreign_output`: a folder of it is a link, so it could not be repaired either.
    """
    folder = run_folder(output_dir, run_hash)
    refuse_links(folder)
    with contextlib.suppress(IntegrityError):
        manifest = read_manifest(folder)
        # No earlier version gave a run the hash that this one gives it, so a run without proof has lost it.
        if manifest.run_hash == run_hash and manifest.is_proven and not _has_links(folder, manifest):
            check_published(folder, manifest, verify)
            return manifest
    return None


def _has_links(folder: Path, manifest: RunManifest) -> bool:
    """Return whether a file of this run became a symbolic link, which could lead to anything by tomorrow."""
    files = (*manifest.notes, *manifest.lists, *manifest.outputs)
    names = [MANIFEST, *(record.path for record in files)]
    for parent in {posixpath.dirname(name) for name in names}:
        refuse_links(folder / parent)
    return any(os.path.islink(f"{folder}/{name}") for name in names)  # noqa: PTH114 - a run may have many files
