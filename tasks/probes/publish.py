"""From stage files to published probe rows: numbered shards, the report, the manifest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.probes import FLOW, PUBLISHED, REPORT, SHARD_SUFFIX, SPLITS
from schemas.run import FileRecord, InputRecord, Receipt, RowLedger, RunManifest
from tasks.probes.report import split_report
from tasks.probes.scatter import REJECTS
from tasks.store.environment import environment, versions
from tasks.store.fingerprint import check_unchanged
from tasks.store.publish import commit_run, fill_run, publishing


@dataclass(frozen=True)
class PublishWork:
    """Written probe rows, ready to be seen.

    Attributes:
        scattered, gathered: receipts of both passes, in order.
        ledger: of the whole run.
        config: the resolved configuration as JSON.
        inputs: fingerprints of every input file; `seen`: what each looked like when it was hashed.
    """

    output_dir: str
    run_hash: str
    scattered: tuple[Receipt, ...]
    gathered: tuple[Receipt, ...]
    ledger: RowLedger
    config: str
    inputs: tuple[InputRecord, ...]
    seen: dict[str, list[int]]


def publish_probes(work: PublishWork) -> RunManifest:
    """Fill the run folder, write its manifest, move `latest`.

    Raises:
        InputError: an input changed since it was hashed; nothing is published.
        StorageError: a file cannot be linked or written.
    """
    check_unchanged(work.seen)
    root = Path(work.output_dir)
    statistics = run_statistics(work)
    links = {**shard_names(work.gathered), **_reject_links(work.scattered)}
    documents = {REPORT: _json(statistics)}
    notes = {
        "config.json": work.config.encode() + b"\n",
        "inputs.json": _json([record.model_dump() for record in work.inputs]),
    }
    with publishing(root, work.run_hash):
        outputs = fill_run(root, work.run_hash, links, {}, documents, notes)
        manifest = RunManifest(
            flow=FLOW,
            run_hash=work.run_hash,
            outputs=outputs,
            ledger=work.ledger,
            statistics=statistics,
            stages=_lineage(work),
            versions=versions(),
            environment=environment(),
        )
        commit_run(root, manifest, PUBLISHED)
    return manifest


def written_shards(gathered: Sequence[Receipt]) -> list[tuple[dict[str, Any], FileRecord]]:
    """The counts of every shard and its file, in the order they are published in."""
    return [
        pair for receipt in gathered for pair in zip(receipt.statistics["shards"], receipt.files, strict=True)
    ]


def shard_names(gathered: Sequence[Receipt]) -> dict[str, FileRecord]:
    """Published name of every shard."""
    names = {}
    shards = written_shards(gathered)
    for split in SPLITS:
        records = [record for counts, record in shards if counts["split"] == split]
        for number, record in enumerate(records):
            names[f"{split}-{number:05d}-of-{len(records):05d}{SHARD_SUFFIX}"] = record
    return names


def run_statistics(work: PublishWork) -> dict[str, Any]:
    """Totals of the run, and its report by split."""
    shards = written_shards(work.gathered)
    report = split_report([counts for counts, _ in shards], [record.bytes for _, record in shards])
    totals = ("probes", "records", "measurements", "failed", "shards")
    return {
        **{name: sum(entry[name] for entry in report.values()) for name in totals},
        "versions_filled": sum(receipt.statistics["versions_filled"] for receipt in work.scattered),
        "probe_splits": report,
    }


def _reject_links(scattered: Sequence[Receipt]) -> dict[str, FileRecord]:
    found = [r for receipt in scattered for r in receipt.files if r.path.endswith(f"/{REJECTS}")]
    return {f"rejects/input-{number:06d}.parquet": record for number, record in enumerate(found)}


def _lineage(work: PublishWork) -> dict[str, str]:
    return {
        f"{receipt.task}/{number:06d}": receipt.stage
        for receipts in (work.scattered, work.gathered)
        for number, receipt in enumerate(receipts)
    }


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=2).encode() + b"\n"
