"""Find and remove what an output folder no longer needs.

A run is needed if it is the latest, one of the newest, or young; a stage if a needed run was made from it, or if it
is young: every run that reuses a stage touches its folder, so a run in progress keeps the stages it builds on
for `min_age_s`, on any host. Published runs lose nothing: their files are hard links of their own.

A damaged run can be repaired by running its configuration again, so it is kept, with all stages: only its manifest
knows which of them it was made from.

A kill leaves nothing that looks complete: a run loses its manifest first, a stage its receipts.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from schemas.errors import ConfigError, IntegrityError
from schemas.run import RunManifest
from tasks.run.elsewhere import SUFFIX, read_elsewhere
from tasks.run.layout import LATEST, MANIFEST, MARKER, RUNS, STAGES
from tasks.run.manifest import read_manifest
from tasks.run.publish import publishing
from tasks.storage.atomic import TEMP_PREFIX, storage_errors
from tasks.storage.links import refuse_link, refuse_links
from tasks.storage.listing import entries, walk
from tasks.storage.names import link_target, remove_path
from tasks.storage.reading import status

RECEIPTS = "receipts"


@dataclass(frozen=True)
class StoredRun:
    """A complete run on disk.

    Attributes:
        published_s: when its manifest was written, seconds since 1970.
        latest: whether `latest` names it.
    """

    folder: Path
    manifest: RunManifest
    published_s: float
    latest: bool


@dataclass(frozen=True)
class Unneeded:
    """What can be removed.

    Attributes:
        runs: run folders, complete or not.
        stages: stage folders.
        spills: files outside that the stages record, see `tasks.run.elsewhere`.
        damaged: run folders that are kept, and what is wrong with the manifest.
        leftovers: temporary files that a killed writer left in what is kept, where nobody writes any more.
        freed_bytes: what their removal frees; a file that a needed run also links to frees nothing.
    """

    runs: tuple[Path, ...]
    stages: tuple[Path, ...]
    spills: tuple[Path, ...]
    freed_bytes: int
    damaged: dict[Path, str] = field(default_factory=dict)
    leftovers: tuple[Path, ...] = ()


def list_runs(output_dir: Path) -> list[StoredRun]:
    """List the complete runs of an output folder, newest first.

    Raises:
        ConfigError: this is not an output folder.
    """
    _refuse_other(output_dir)
    found, _ = _read_runs(output_dir)
    return found


def damaged_runs(output_dir: Path) -> dict[Path, str]:
    """Return the folders of runs whose manifest cannot be read, and what is wrong with it.

    Raises:
        ConfigError: this is not an output folder.
    """
    _refuse_other(output_dir)
    _, faults = _read_runs(output_dir)
    return _damaged(output_dir, faults)


def _damaged(output_dir: Path, faults: dict[Path, IntegrityError]) -> dict[Path, str]:
    # A folder without a manifest is a run that never ended, except where `latest` leads.
    latest = (output_dir / LATEST).resolve()
    return {
        folder: error.message
        for folder, error in faults.items()
        if error.code != "no_manifest" or folder.resolve() == latest
    }


def _read_runs(output_dir: Path) -> tuple[list[StoredRun], dict[Path, IntegrityError]]:
    """Return the complete runs, newest first, and what is wrong with the manifest of each other folder."""
    latest = (output_dir / LATEST).resolve()
    found = []
    faults = {}
    for folder in _folders(output_dir / RUNS):
        try:
            manifest = read_manifest(folder)
        except IntegrityError as error:
            faults[folder] = error
        else:
            is_latest = folder.resolve() == latest
            found.append(StoredRun(folder, manifest, _changed_s(folder / MANIFEST), is_latest))
    return sorted(found, key=lambda run: (-run.published_s, run.folder.name)), faults


def find_unneeded(output_dir: Path, keep: int, min_age_s: float, now_s: float) -> Unneeded:
    """Find what is neither needed nor younger than `min_age_s`.

    Args:
        keep: how many of the newest runs to keep; the latest is kept beyond that.

    Raises:
        ConfigError: this is not an output folder, or a number is negative; `foreign_output`: `runs`, `stages` or
            something directly below is a link.
    """
    for folder in (output_dir / RUNS, output_dir / STAGES):
        refuse_links(folder)
        for path in entries(folder):
            # The stages of a run that is not seen would count as unused.
            refuse_link(path)
    for where, value in (("--keep", keep), ("--min-age", min_age_s)):
        if value < 0:
            raise ConfigError(f"{value:g} is negative", code="usage", where=where)

    def old(folder: Path) -> bool:
        return now_s - max(_changed_s(path) for path in (folder, folder / RECEIPTS)) >= min_age_s

    _refuse_other(output_dir)
    complete, faults = _read_runs(output_dir)
    damaged = _damaged(output_dir, faults)
    kept = {
        run.folder: run.manifest
        for number, run in enumerate(complete)
        if run.latest or number < keep or now_s - run.published_s < min_age_s
    }
    used = {stage for manifest in kept.values() for stage in manifest.stages.values()}
    whole = {run.folder for run in complete}
    runs = tuple(
        folder
        for folder in _folders(output_dir / RUNS)
        if folder not in kept and folder not in damaged and (folder in whole or old(folder))
    )
    stages = tuple(
        folder
        for folder in _folders(output_dir / STAGES)
        if not damaged and folder.name not in used and old(folder)
    )
    spills = tuple(target for stage in stages for target in _spills(stage))
    leftovers = tuple(
        path
        for parent in (output_dir / RUNS, output_dir / STAGES)
        for folder in _folders(parent)
        if folder not in runs and folder not in stages
        for path in walk(folder, f"{TEMP_PREFIX}*")
        if now_s - _changed_s(path) >= min_age_s
    )
    return Unneeded(runs, stages, spills, _freed_bytes([*runs, *stages], spills), damaged, leftovers)


def remove(output_dir: Path, unneeded: Unneeded) -> None:
    """Remove what `find_unneeded` found.

    Raises:
        StorageError: a file cannot be removed; another call resumes.
        ConfigError: `foreign_output`: a folder is, or is reached through, a link.
    """
    for folder in unneeded.runs:
        with publishing(output_dir, folder.name), storage_errors(folder, "remove"):
            # A driver may have published it again, or found it complete, since it was counted as old.
            if link_target(output_dir / LATEST) == f"{RUNS}/{folder.name}":
                continue
            remove_path(folder / MANIFEST)
            remove_path(folder)
    for spill in unneeded.spills:
        with storage_errors(spill, "remove"):
            remove_path(spill)
    for folder in unneeded.stages:
        with storage_errors(folder, "remove"):
            remove_path(folder / RECEIPTS)
            remove_path(folder)
    for leftover in unneeded.leftovers:
        with storage_errors(leftover, "remove"):
            remove_path(leftover)


def _refuse_other(output_dir: Path) -> None:
    if not (output_dir / MARKER).is_file():
        raise ConfigError(
            f"this is not an output folder: it has no {MARKER}", code="missing_path", where=str(output_dir)
        )


def _folders(parent: Path) -> list[Path]:
    return [path for path in entries(parent) if path.is_dir() and not path.is_symlink()]


def _changed_s(path: Path) -> float:
    try:
        return status(path).st_mtime
    except FileNotFoundError:
        return 0.0


def _spills(stage: Path) -> Iterator[Path]:
    """Find files in a spill folder, where they have the same relative paths as their records here."""
    for path in entries(stage):
        target = _recorded(path)
        if target is not None and target.parts[-3:] == (STAGES, stage.name, path.name.removesuffix(SUFFIX)):
            for folder in (target.parent.parent, target.parent):
                refuse_link(folder)
            yield target


def _recorded(path: Path) -> Path | None:
    # Earlier versions made symbolic links.
    if (link := link_target(path)) is not None:
        return Path(link)
    if path.suffix == SUFFIX:
        with contextlib.suppress(OSError, IntegrityError):
            return Path(read_elsewhere(path).path)
    return None


def _freed_bytes(folders: list[Path], spills: tuple[Path, ...]) -> int:
    names: Counter[tuple[int, int]] = Counter()
    sizes: dict[tuple[int, int], tuple[int, int]] = {}
    files = [path for folder in folders for path in walk(folder) if path.is_file() and not path.is_symlink()]
    for path in [*files, *(spill for spill in spills if spill.is_file())]:
        found = status(path)
        inode = (found.st_dev, found.st_ino)
        names[inode] += 1
        sizes[inode] = (found.st_nlink, found.st_size)
    return sum(size for inode, (links, size) in sizes.items() if names[inode] >= links)
