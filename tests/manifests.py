"""Published runs made by hand: files and a manifest that names them, without running a flow."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from schemas.run import FileRecord, RowLedger, RunManifest
from tasks.run.layout import LATEST, MANIFEST, MARKER, RUNS

RUN_HASH = "0123456789abcdef"


def publish_by_hand(output_dir: Path, flow: str, run_hash: str = RUN_HASH, **manifest: Any) -> Path:
    """Make what lies in `output_dir/runs/{run_hash}` a published run, the latest; returns its folder."""
    run = output_dir / RUNS / run_hash
    run.mkdir(parents=True, exist_ok=True)
    (output_dir / MARKER).write_text(json.dumps({"flow": flow, "layout": 1}))
    outputs = tuple(
        FileRecord(
            path=file.relative_to(run).as_posix(),
            bytes=file.stat().st_size,
            sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        )
        for file in sorted(run.rglob("*"))
        if file.is_file() and not file.is_symlink()
    )
    for note in ("config.json", "inputs.json"):
        (run / note).write_text("{}")
    fields: dict[str, Any] = {"statistics": {}, "stages": {}, "versions": {}, "environment": {}, **manifest}
    record = RunManifest(flow=flow, run_hash=run_hash, outputs=outputs, ledger=RowLedger(), **fields)
    (run / MANIFEST).write_text(record.model_dump_json())
    (output_dir / LATEST).unlink(missing_ok=True)
    (output_dir / LATEST).symlink_to(f"{RUNS}/{run_hash}")
    return run
