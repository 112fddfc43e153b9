"""Publish a run: fill its folder, write the manifest last, then move `latest` in one step.

A consumer sees either the old run or the new one. Links into the stages cost no space; where the file system has no
hard links they become copies.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from schemas.errors import IntegrityError
from schemas.run import FileRecord, InputRecord, Receipt, RowLedger, RunManifest
from tasks.inputs.fingerprint import check_unchanged
from tasks.run.contract import Domain
from tasks.run.environment import environment, versions
from tasks.run.history import completed_run
from tasks.run.identity import Identity
from tasks.run.layout import (
    CONFIG,
    INPUTS,
    LATEST,
    MANIFEST,
    NOTES,
    REPORT_PAGE,
    RUNS,
    STAGES,
    run_folder,
)
from tasks.run.manifest import file_records, format_manifest, output_lists, read_manifest, sealed
from tasks.run.receipts import Verify
from tasks.storage.atomic import (
    TEMP_PREFIX,
    link_file,
    refuse_folder,
    storage_errors,
    swap_symlink,
    write_file,
)
from tasks.storage.flock import locked
from tasks.storage.links import refuse_links
from tasks.storage.listing import walk
from tasks.storage.names import link_target, remove_path, sync_folders


@dataclass(frozen=True)
class Publication:
    """A validated run, ready to publish.

    Attributes:
        published: names at the top of the output directory, and their link targets.
        output_dir: root of the run layout.
        links: published path to the record of the stage file it links to, relative to `output_dir`.
        symlinks: published path to relative target.
        documents: published path to the bytes of a small file.
        ledger, statistics: of the whole run.
        stages: name to key of each stage, for lineage.
        config: the resolved configuration as JSON.
        inputs: fingerprints of every input file; `seen`: their file status at the time they were hashed.
        warnings: what the user must know of the data, each a sentence.
        report: the page about this run, or nothing. It lists what this execution ran and reused, so it is not an
            output: two runs of one configuration may differ in it.
    """

    flow: str
    published: Mapping[str, str]
    output_dir: str
    run_hash: str
    links: Mapping[str, FileRecord]
    ledger: RowLedger
    statistics: dict[str, Any]
    stages: dict[str, str]
    config: str
    inputs: tuple[InputRecord, ...]
    seen: Mapping[str, list[int]]
    symlinks: dict[str, str] = field(default_factory=dict)
    documents: Mapping[str, bytes] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    report: bytes | None = None


@dataclass(frozen=True)
class Contents:
    """What a domain publishes.

    Attributes:
        links, symlinks, documents, warnings: see `Publication`.
        ledger, statistics: of the whole run.
        stages: `{step}/{what}/{part:06d}` to stage key, for lineage; `what` and `part` may be missing.
    """

    links: Mapping[str, FileRecord]
    ledger: RowLedger
    statistics: dict[str, Any]
    stages: dict[str, str]
    symlinks: dict[str, str] = field(default_factory=dict)
    documents: Mapping[str, bytes] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def publication_of(domain: Domain, config: Any, identity: Identity[Any], contents: Contents) -> Publication:
    """Combine what a domain publishes with what every run records about itself."""
    return Publication(
        flow=domain.flow,
        published=domain.published,
        output_dir=config.output_dir,
        run_hash=identity.run_hash,
        links=contents.links,
        symlinks=contents.symlinks,
        documents=contents.documents,
        ledger=contents.ledger,
        statistics=contents.statistics,
        stages=contents.stages,
        warnings=(*identity.warnings(), *contents.warnings),
        config=config.model_dump_json(indent=2),
        inputs=identity.records(),
        seen=identity.seen,
    )


def part_stages(step: str, receipts: Iterable[Receipt], what: str = "") -> dict[str, str]:
    """Return the stage key of every part of a step, by its name in the lineage."""
    head = f"{step}/{what}" if what else step
    return {f"{head}/{part:06d}": receipt.stage for part, receipt in enumerate(receipts)}


def publish_run(publication: Publication) -> RunManifest:
    """Fill the run folder, write its manifest, move `latest`.

    Raises:
        InputError: an input changed since it was hashed; nothing is published.
        StorageError: a file cannot be linked or written.
        ConfigError: `foreign_output`: a link was put into the output folder, see `tasks.storage.links`.
    """
    check_unchanged(publication.seen)
    root, run_hash = Path(publication.output_dir), publication.run_hash
    notes = {
        CONFIG: publication.config.encode() + b"\n",
        INPUTS: json_document([record.model_dump() for record in publication.inputs]),
    }
    if publication.report is not None:
        notes[REPORT_PAGE] = publication.report
    with publishing(root, run_hash):
        outputs = fill_run(root, run_hash, publication.links, publication.symlinks, publication.documents)
        manifest = RunManifest(
            flow=publication.flow,
            run_hash=run_hash,
            outputs=outputs,
            notes=file_records(notes),
            links=publication.symlinks,
            ledger=publication.ledger,
            statistics=publication.statistics,
            stages=publication.stages,
            warnings=publication.warnings,
            versions=versions(),
            environment=environment(),
        )
        return commit_run(root, manifest, notes, publication.published)


def json_document(value: Any) -> bytes:
    """Format a small JSON file for people to read."""
    return json.dumps(value, indent=2, allow_nan=False).encode() + b"\n"


def fill_run(
    output_dir: Path,
    run_hash: str,
    links: Mapping[str, FileRecord],
    symlinks: Mapping[str, str],
    documents: Mapping[str, bytes],
) -> tuple[FileRecord, ...]:
    """Put every output of a run under its published name; return their records relative to the run folder.

    Where outputs are many, the files that list them for the manifest are written, too. When it returns, all of them
    would survive a power cut.

    Args:
        links: published path to a file whose record is relative to the output directory.
        symlinks: published path to relative link target.
        documents: published path to content.
    """
    folder = run_folder(output_dir, run_hash)
    records = [*file_records(documents)]
    # The rest are refused as they are made; what is left over, below these names too, is removed before.
    for name in (*NOTES, MANIFEST):
        with storage_errors(folder / name):
            refuse_folder(folder / name)
    for name, record in links.items():
        link_file(output_dir / record.path, folder / name)
        records.append(FileRecord(path=name, bytes=record.bytes, sha256=record.sha256))
    for name, target in symlinks.items():
        swap_symlink(folder / name, target, sync=False)
    outputs = tuple(sorted(records, key=lambda record: record.path))
    small = {**documents, **output_lists(outputs)}
    for name, content in small.items():
        write_file(folder / name, content)
    _remove_leftovers(folder, {*links, *symlinks, *small, *NOTES, MANIFEST})
    parents = {parent for name in (*links, *symlinks) for parent in PurePosixPath(name).parents}
    with storage_errors(folder):
        # Deepest first: a folder that is reached holds what it should.
        sync_folders(folder / parent for parent in sorted(parents, reverse=True))
    return outputs


def commit_run(
    output_dir: Path, manifest: RunManifest, notes: Mapping[str, bytes], published: Mapping[str, str]
) -> RunManifest:
    """Write the notes and the manifest, then point `latest` and the top-level names at the run.

    Returns:
        The manifest with its digest.
    """
    folder = run_folder(output_dir, manifest.run_hash)
    with contextlib.suppress(IntegrityError):
        before = read_manifest(folder)
        if before.notes != manifest.notes and before.outputs == manifest.outputs:
            # Until all notes are replaced, this complete run stays complete.
            both = manifest.model_copy(update={"notes": (*manifest.notes, *before.notes)})
            write_file(folder / MANIFEST, format_manifest(sealed(both)))
    for name, content in notes.items():
        write_file(folder / name, content)
    manifest = sealed(manifest)
    write_file(folder / MANIFEST, format_manifest(manifest))
    with storage_errors(folder, "remove"):
        for name in set(NOTES) - set(notes):
            remove_path(folder / name)
    point_latest(output_dir, manifest.run_hash, published)
    return manifest


def point_latest(output_dir: Path, run_hash: str, published: Mapping[str, str]) -> None:
    """Point `latest` at this run, unless it already does.

    Whatever a pointer leads to survives a power cut before the pointer does.
    """
    if link_target(output_dir / LATEST) != f"{RUNS}/{run_hash}":
        above = (run_folder(output_dir, run_hash), output_dir / RUNS, output_dir / STAGES, output_dir)
        with storage_errors(output_dir):
            # Files are synced before the manifest is written; these folders perhaps not, if a process was killed.
            sync_folders(folder for folder in above if folder.is_dir())
    for name, target in {LATEST: f"{RUNS}/{run_hash}", **published}.items():
        link = output_dir / name
        if link_target(link) != target:
            swap_symlink(link, target)


def complete_run(
    output_dir: Path, run_hash: str, verify: Verify, published: Mapping[str, str]
) -> RunManifest | None:
    """Return the manifest of this run if it is complete, after pointing `latest` at it; else `None`.

    Raises:
        ConfigError: `foreign_output`, as `completed_run`.
        StorageError: a pointer cannot be moved.
    """
    manifest = completed_run(output_dir, run_hash, verify)
    if manifest is not None and link_target(output_dir / LATEST) != f"{RUNS}/{run_hash}":
        # Until it is the latest, `prune` may remove it.
        with publishing(output_dir, run_hash):
            manifest = completed_run(output_dir, run_hash, Verify.SIZE)
            if manifest is not None:
                point_latest(output_dir, run_hash, published)
    if manifest is not None:
        point_latest(output_dir, run_hash, published)
    return manifest


@contextlib.contextmanager
def publishing(output_dir: Path, run_hash: str) -> Iterator[None]:
    """Hold the run's publication lock; the kernel releases it if this process dies."""
    with locked(output_dir / RUNS / f".{run_hash}.lock"):
        yield


def _remove_leftovers(folder: Path, wanted: set[str]) -> None:
    """Remove what a killed attempt left in this run folder."""
    refuse_links(folder)
    for path in reversed(walk(folder)):
        name = path.relative_to(folder).as_posix()
        stale = name not in wanted and (path.is_symlink() or path.is_file())
        if stale or path.name.startswith(TEMP_PREFIX):
            remove_path(path)
