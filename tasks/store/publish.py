"""Publishing: the run folder is filled, the manifest written last, then `latest` moves in one step.

A consumer sees the old run or the new one. Links into the stages cost no space; where the file system has no
hard links they become copies.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from schemas.run import FileRecord, RunManifest
from tasks.store.atomic import TEMP_PREFIX, link_file, storage_errors, swap_symlink, write_file
from tasks.store.layout import LATEST, MANIFEST, RUNS, run_folder


def fill_run(
    output_dir: Path,
    run_hash: str,
    links: Mapping[str, FileRecord],
    symlinks: Mapping[str, str],
    documents: Mapping[str, bytes],
    notes: Mapping[str, bytes],
) -> tuple[FileRecord, ...]:
    """Put every file of a run under its published name; returns their records relative to the run folder.

    Args:
        links: published path to a file whose record is relative to the output directory.
        symlinks: published path to relative link target.
        documents: published path to content.
        notes: as `documents`, for files about the run itself; they have no record in the manifest.
    """
    folder = run_folder(output_dir, run_hash)
    records = []
    for name, record in links.items():
        link_file(output_dir / record.path, folder / name)
        records.append(FileRecord(path=name, bytes=record.bytes, sha256=record.sha256))
    for name, target in symlinks.items():
        link = folder / name
        with storage_errors(link):
            link.parent.mkdir(parents=True, exist_ok=True)
        swap_symlink(link, target)
    for name, content in documents.items():
        records.append(write_file(folder / name, content).record(folder))
    for name, content in notes.items():
        write_file(folder / name, content)
    _remove_leftovers(folder, {record.path for record in records} | {*symlinks, *notes, MANIFEST})
    return tuple(sorted(records, key=lambda record: record.path))


def commit_run(output_dir: Path, manifest: RunManifest, published: Mapping[str, str]) -> None:
    """Write the manifest, then point `latest` and the top-level names at the run."""
    folder = run_folder(output_dir, manifest.run_hash)
    write_file(folder / MANIFEST, manifest.model_dump_json(indent=2).encode() + b"\n")
    point_latest(output_dir, manifest.run_hash, published)


def point_latest(output_dir: Path, run_hash: str, published: Mapping[str, str]) -> None:
    """Make `latest` name this run; does nothing if it already does."""
    for name, target in {LATEST: f"{RUNS}/{run_hash}", **published}.items():
        link = output_dir / name
        if not link.is_symlink() or os.fspath(link.readlink()) != target:
            swap_symlink(link, target)


@contextlib.contextmanager
def publishing(output_dir: Path, run_hash: str) -> Iterator[None]:
    """Hold the run's publication lock; the kernel releases it if this process dies."""
    path = output_dir / RUNS / f".{run_hash}.lock"
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _remove_leftovers(folder: Path, wanted: set[str]) -> None:
    """Remove what an attempt that was killed half-way left in this run folder."""
    for path in sorted(folder.rglob("*"), reverse=True):
        name = path.relative_to(folder).as_posix()
        stale = name not in wanted and (path.is_symlink() or path.is_file())
        if stale or path.name.startswith(TEMP_PREFIX):
            path.unlink(missing_ok=True)
