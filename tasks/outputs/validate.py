"""Validate anything Gristmill makes or reads: a run, an output folder, a folder of shards, one file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from schemas import corpus, probes, sft, tokenizer
from schemas.errors import ConfigError, IntegrityError
from schemas.run import RunManifest
from schemas.verdict import Fault, Verdict
from tasks.corpus.validate import validate_sample
from tasks.probes.validate import validate_probes, validate_records
from tasks.run.history import published_faults, read_manifest
from tasks.run.layout import LATEST, MANIFEST, MARKER, RUNS
from tasks.run.receipts import Verify
from tasks.sft.shards.find import find_shards, shard_format
from tasks.sft.shards.validate import validate_shards
from tasks.sft.validate import validate_packed
from tasks.storage.listing import walk
from tasks.storage.parquet import read_table
from tasks.tokenizer.validate import validate_tokenizer

_RECORDS = ".arrayrecord"

# What a run of each flow must keep beyond manifest, files and ledger.
_BY_FLOW: dict[str, Callable[[Path, RunManifest, bool], Verdict]] = {
    sft.FLOW: validate_packed,
    corpus.FLOW: validate_sample,
    tokenizer.FLOW: validate_tokenizer,
    probes.FLOW: validate_probes,
}


def validate_path(path: Path, full: bool = True) -> Verdict:
    """Validate what lies at `path`.

    Args:
        path: a run folder, an output folder (its latest run), a folder of shards, or a shard.
        full: read every row and check digests; otherwise sizes, links and the ledger of a run, and the rows
            of loose shards.

    Raises:
        ConfigError: nothing there can be validated.
    """
    if not path.exists():
        raise ConfigError("nothing is there", code="missing_path", where=str(path))
    if path.is_file() and path.suffix == _RECORDS:
        return validate_records([path], "file", str(path))
    if path.is_file() or shard_format(path) is not None:
        return validate_shards([path], "file", str(path))
    for run in (path, path / LATEST):
        if (run / MANIFEST).is_file() or _is_run_folder(run):
            return _validate_run(run.resolve(), full)
    if (path / MARKER).is_file():
        raise ConfigError(
            "this output folder has no published run yet; run its flow to the end",
            code="missing_path",
            where=str(path),
        )
    records = walk(path, f"*{_RECORDS}")
    if records:
        return validate_records(records, "folder", str(path))
    try:
        shards = find_shards(path)
    except ConfigError:
        raise ConfigError(
            "the folder holds neither a run (manifest.json) nor packed or ArrayRecord shards",
            code="missing_path",
            where=str(path),
        ) from None
    return validate_shards(shards, "folder", str(path))


def _is_run_folder(path: Path) -> bool:
    """Whether this is a run's place in an output folder, complete or not."""
    folder = path.resolve()
    return folder.is_dir() and folder.parent.name == RUNS and (folder.parents[1] / MARKER).is_file()


def _validate_run(folder: Path, full: bool) -> Verdict:
    try:
        manifest = read_manifest(folder)
    except IntegrityError as error:
        return Verdict(path=str(folder), kind="run", faults=(_fault(error),))
    faults = _check_rejects(folder, manifest)
    level = Verify.SHA256 if full else Verify.SIZE
    faults += [_fault(error) for error in published_faults(folder, manifest, level)]
    counts = {"files": len(manifest.outputs)}
    of_flow = _BY_FLOW.get(manifest.flow)
    if of_flow is None:
        detail = f"unknown flow {manifest.flow!r}; known: {', '.join(sorted(_BY_FLOW))}"
        faults.append(Fault(where=str(folder / MANIFEST), rule="flow", detail=detail))
    else:
        verdict = of_flow(folder, manifest, full)
        counts |= verdict.counts
        faults += verdict.faults
    return Verdict(path=str(folder), kind="run", counts=counts, faults=tuple(faults))


def _fault(error: IntegrityError) -> Fault:
    return Fault(where=error.where, rule=error.code, detail=error.message)


def _check_rejects(folder: Path, manifest: RunManifest) -> list[Fault]:
    """The rejected rows the ledger counts are the rows that reject files list."""
    import pyarrow as pa

    listed: dict[str, int] = {}
    for record in manifest.outputs:
        path = folder / record.path
        if not record.path.startswith("rejects/") or not path.is_file():
            continue
        try:
            reasons = read_table(path, ["reason"]).column(0).to_pylist()
        except (pa.ArrowException, OSError) as error:
            return [Fault(where=str(path), rule="readable", detail=f"not a readable reject file: {error}")]
        for reason in reasons:
            listed[reason] = listed.get(reason, 0) + 1
    if listed == manifest.ledger.rejected:
        return []
    detail = f"the ledger rejected {manifest.ledger.rejected}, the files in rejects/ list {listed}"
    return [Fault(where=str(folder / MANIFEST), rule="ledger", detail=detail)]
