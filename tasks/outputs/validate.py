"""Validate anything Gristmill makes or reads: a run, an output folder, a folder of files of one kind, one file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from schemas.errors import ConfigError, GristmillError, InputError, IntegrityError
from schemas.run import RunManifest
from schemas.verdict import ERROR, WARNING, Fault, Verdict
from tasks.outputs.domains import PACKED, REJECTED
from tasks.outputs.finding import domain_of, sort_out
from tasks.outputs.rejects import check_ledger
from tasks.run.find import Found, Kind, copied_names, find, find_uri, local_path
from tasks.run.history import pointer_faults, published_faults, unlisted_files
from tasks.run.layout import LATEST, MANIFEST, MARKER, NOTES
from tasks.run.receipts import Verify
from tasks.sft.shards.find import run_shards
from tasks.sft.shards.remote import all_uri_shards, only_parquet
from tasks.storage.listing import is_pattern
from tasks.storage.names import link_target


def validate_path(path: Path | str, full: bool = True) -> Verdict:
    """Validate what is at `path`.

    Args:
        path: a run folder, an output folder (its latest run), a folder of shards or of reject files, a tokenizer's
            folder, or one such file; also a URI (text) of packed Parquet, in a run or not.
        full: read every row and check digests; otherwise sizes, links and the ledger of a run, and the rows
            of loose files.

    Raises:
        ConfigError: nothing there can be validated, or a folder contains files of several kinds.
        InputError: `remote_input`, it is behind a URI and not packed Parquet.
    """
    local = local_path(path)
    if local is None:
        return _validate_uri(str(path), full)
    found = find(local)
    return _validate_run(found, full) if found.is_run else _validate_loose(found)


def _validate_uri(uri: str, full: bool) -> Verdict:
    found = None if is_pattern(uri) else find_uri(uri)
    if found is None or not found.is_run:
        kind = "file" if found is not None and found.kind is Kind.FILE else "folder"
        return PACKED.validate_files(all_uri_shards(uri), kind, uri)
    if isinstance(found.read, RunManifest):
        domain = domain_of(found)
        if not domain.is_remote:
            raise InputError(
                f"{domain.kind} behind a URI cannot be validated, only packed Parquet can; copy or mount the run",
                code="remote_input",
                where=uri,
            )
        only_parquet(run_shards(found), uri)
    return _validate_run(found, full)


def _validate_loose(found: Found[Path]) -> Verdict:
    pile = sort_out(found)
    kind, where = "file" if pile.is_single else "folder", str(found.named)
    verdicts = []
    # Judge a file that is unreadable or lacks a column as the files around it, or as the closest domain.
    doubtful = [file.path for file in pile.unclear]
    if pile.domain is not None:
        files = sorted([*pile.files, *doubtful], key=lambda file: file.parts)
        verdicts.append(pile.domain.validate_files(files, kind, where))
    else:
        faults = tuple(_fault(file.error, "schema") for file in pile.unclear)
        verdicts.append(Verdict(path=where, kind=kind, counts={"files": len(faults)}, faults=faults))
    if pile.rejects:
        verdicts.append(REJECTED.validate_files(pile.rejects, kind, where))
    return Verdict(
        path=where,
        kind=kind,
        counts={name: value for verdict in verdicts for name, value in verdict.counts.items()},
        faults=tuple(fault for verdict in verdicts for fault in verdict.faults),
    )


def _validate_run(found: Found[Any], full: bool) -> Verdict:
    folder = found.folder
    try:
        manifest = found.manifest
    except IntegrityError as error:
        return Verdict(path=str(folder), kind="run", faults=(_fault(error),))
    faults = check_ledger(found)
    level = Verify.SHA256 if full else Verify.SIZE
    faults += [_fault(error) for error in published_faults(folder, manifest, level)]
    if isinstance(folder, Path):
        faults += [_fault(error) for error in unlisted_files(folder, manifest)]
    if not manifest.is_proven:
        detail = (
            f"the manifest has no digest of its own, published by an earlier version: it and {', '.join(NOTES)} "
            "cannot be checked"
        )
        faults.append(Fault(where=str(found.at(MANIFEST)), rule="proof", detail=detail, level=WARNING))
    counts = {"files": len(manifest.outputs)}
    try:
        domain = domain_of(found)
    except ConfigError as error:
        faults.append(_fault(error, "flow"))
    else:
        for name in copied_names(found, domain.published):
            faults += [_fault(error) for error in published_faults(found.named, manifest, level, below=name)]
        # A copy, in which `latest` is a folder, may leave names out.
        named = found.named
        if isinstance(named, Path) and (named / MARKER).is_file() and link_target(named / LATEST) is not None:
            # A run that is killed just after it moved `latest` lacks the others, and is complete.
            faults += [
                _fault(error, level=ERROR if os.path.lexists(error.where) else WARNING)
                for error in pointer_faults(named, domain.published)
            ]
        if domain.validate_run is not None:
            verdict = domain.validate_run(found, manifest, full)
            counts |= verdict.counts
            faults += verdict.faults
    return Verdict(path=str(folder), kind="run", counts=counts, faults=tuple(faults))


def _fault(error: GristmillError, rule: str = "", level: str = ERROR) -> Fault:
    return Fault(where=error.where, rule=rule or error.code, detail=error.message, level=level)
