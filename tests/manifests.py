"""Published runs made by hand: files and a manifest that names them, without running a flow."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from schemas.run import FileRecord, RowLedger, RunManifest
from tasks.run.layout import CONFIG, INPUTS, LATEST, MANIFEST, MARKER, RUNS

RUN_HASH = "0123456789abcdef"


def publish_by_hand(output_dir: Path, flow: str, run_hash: str = RUN_HASH, **manifest: Any) -> Path:
    """Make what lies in `output_dir/runs/{run_hash}` a published run, the latest; returns its folder."""
    run = output_dir / RUNS / run_hash
    run.mkdir(parents=True, exist_ok=True)
    (output_dir / MARKER).write_text(json.dumps({"flow": flow, "layout": 1}))
    outputs = tuple(
        _record(run, file) for file in sorted(run.rglob("*")) if file.is_file() and not file.is_symlink()
    )
    for note in (CONFIG, INPUTS):
        (run / note).write_text("{}")
    notes = tuple(_record(run, run / note) for note in (CONFIG, INPUTS))
    fields: dict[str, Any] = {"statistics": {}, "stages": {}, "versions": {}, "environment": {}, **manifest}
    record = RunManifest(
        flow=flow, run_hash=run_hash, outputs=outputs, notes=notes, ledger=RowLedger(), **fields
    )
    (run / MANIFEST).write_text(record.model_dump_json())
    edit_manifest(run, lambda fields: None)
    (output_dir / LATEST).unlink(missing_ok=True)
    (output_dir / LATEST).symlink_to(f"{RUNS}/{run_hash}")
    return run


def digest_of_manifest(content: bytes) -> str:
    """The digest that a manifest should have, as docs/formats.md says how to compute it."""
    fields = json.loads(content, parse_float=lambda text: _whole(float(text)))
    fields.pop("manifest_sha256", None)
    return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def edit_manifest(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest of a run, and give it the digest of what it is now."""
    fields = json.loads((run / MANIFEST).read_bytes())
    change(fields)
    fields["manifest_sha256"] = digest_of_manifest(json.dumps(fields).encode())
    (run / MANIFEST).write_text(json.dumps(fields, separators=(",", ":")))


def _whole(number: float) -> float | int:
    return int(number) if number.is_integer() else number


def _record(run: Path, file: Path) -> FileRecord:
    content = file.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return FileRecord(path=file.relative_to(run).as_posix(), bytes=len(content), sha256=digest)
