"""Validate anything Gristmill makes or reads: a run, an output folder, a folder of shards, one file."""

from __future__ import annotations

from pathlib import Path

from schemas.errors import ConfigError, IntegrityError
from schemas.run import RowLedger, RunManifest
from schemas.verdict import Fault, Verdict
from tasks.sft.validate import validate_shards
from tasks.store.layout import LATEST, MANIFEST
from tasks.store.receipts import Verify
from tasks.store.runs import check_published, read_manifest


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
    if path.is_file():
        return validate_shards([path], "file", str(path))
    for run in (path, path / LATEST):
        if (run / MANIFEST).is_file():
            return _validate_run(run.resolve(), full)
    shards = sorted(path.rglob("*.parquet"))
    if not shards:
        raise ConfigError(
            "the folder holds neither a run (manifest.json) nor Parquet shards",
            code="missing_path",
            where=str(path),
        )
    return validate_shards(shards, "folder", str(path))


def _validate_run(folder: Path, full: bool) -> Verdict:
    where = str(folder)
    try:
        manifest = read_manifest(folder)
    except IntegrityError as error:
        return Verdict(path=where, kind="run", faults=(_fault(error),))
    faults: list[Fault] = []
    for check in (_check_ledger, _check_documents):
        faults += check(folder, manifest)
    try:
        check_published(folder, manifest, Verify.SHA256 if full else Verify.SIZE)
    except IntegrityError as error:
        faults.append(_fault(error))
    shards = [folder / record.path for record in manifest.outputs if record.path.startswith("datasets/")]
    counts: dict[str, int] = {"files": len(manifest.outputs)}
    if full:
        verdict = validate_shards([shard for shard in shards if shard.is_file()], "run", where)
        counts |= verdict.counts
        faults += verdict.faults
        faults += _check_totals(folder, manifest, verdict)
    return Verdict(path=where, kind="run", counts=counts, faults=tuple(faults))


def _fault(error: IntegrityError) -> Fault:
    return Fault(where=error.where, rule=error.code, detail=error.message)


def _check_ledger(folder: Path, manifest: RunManifest) -> list[Fault]:
    """The rejected rows the ledger counts are the rows that reject files list."""
    import pyarrow.parquet as pq

    listed: dict[str, int] = {}
    for record in manifest.outputs:
        path = folder / record.path
        if record.path.startswith("rejects/") and path.is_file():
            for reason in pq.read_table(path, columns=["reason"]).column(0).to_pylist():
                listed[reason] = listed.get(reason, 0) + 1
    ledger: RowLedger = manifest.ledger
    if listed == ledger.rejected:
        return []
    detail = f"the ledger rejected {ledger.rejected}, the files in rejects/ list {listed}"
    return [Fault(where=str(folder / MANIFEST), rule="ledger", detail=detail)]


def _check_documents(folder: Path, manifest: RunManifest) -> list[Fault]:
    """Every path in blend.json leads to a shard, and every split has one."""
    import json

    from schemas.sft import BLEND

    path = folder / BLEND
    try:
        blend: dict[str, list[str]] = json.loads(path.read_bytes())
        named = [Path(name) for entries in blend.values() for name in entries[1::2]]
        weights = [float(weight) for entries in blend.values() for weight in entries[0::2]]
    except (OSError, ValueError, AttributeError, TypeError) as error:
        return [Fault(where=str(path), rule="blend", detail=f"not a readable blend: {error}")]
    faults = [
        Fault(where=str(path), rule="blend", detail=f"{name}.parquet does not exist")
        for name in named
        if not (folder / f"{name}.parquet").is_file()
    ]
    if any(weight <= 0 for weight in weights):
        faults.append(Fault(where=str(path), rule="blend", detail="a weight is not above 0"))
    return faults


def _check_totals(folder: Path, manifest: RunManifest, verdict: Verdict) -> list[Fault]:
    return [
        Fault(
            where=str(folder / MANIFEST),
            rule="totals",
            detail=f"{name}: the manifest says {manifest.statistics.get(name)}, the shards hold {found}",
        )
        for name in ("bins", "sequences", "tokens", "trained_tokens")
        if (found := verdict.counts.get(name, 0)) != manifest.statistics.get(name)
    ]
