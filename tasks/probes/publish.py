"""From stage files to published probe rows: numbered shards, the report, the manifest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from schemas.probes import FLOW, PUBLISHED, REPORT, SHARD_SUFFIX, SPLITS, BuildProbeRowsConfig
from schemas.run import FileRecord, InputRecord, Receipt, RowLedger
from tasks.probes.counts import split_report
from tasks.probes.scatter import REJECTS
from tasks.run.publish import Publication, json_document


@dataclass(frozen=True)
class WrittenRun:
    """Written probe rows; see `tasks.sft.publish.PackedRun`.

    Attributes:
        scattered, gathered: receipts of both passes, in order.
        ledger: of the whole run.
    """

    config: BuildProbeRowsConfig
    run_hash: str
    scattered: tuple[Receipt, ...]
    gathered: tuple[Receipt, ...]
    ledger: RowLedger
    inputs: tuple[InputRecord, ...]
    seen: dict[str, list[int]]


def publication(run: WrittenRun) -> Publication:
    """The probe rows as they are to be published."""
    statistics = run_statistics(run)
    return Publication(
        flow=FLOW,
        published=PUBLISHED,
        output_dir=run.config.output_dir,
        run_hash=run.run_hash,
        links={**shard_names(run.gathered), **_reject_links(run.scattered)},
        documents={REPORT: json_document(statistics)},
        ledger=run.ledger,
        statistics=statistics,
        stages=_lineage(run),
        config=run.config.model_dump_json(indent=2),
        inputs=run.inputs,
        seen=run.seen,
    )


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


def run_statistics(run: WrittenRun) -> dict[str, Any]:
    """Totals of the run, and its report by split."""
    shards = written_shards(run.gathered)
    report = split_report([counts for counts, _ in shards], [record.bytes for _, record in shards])
    totals = ("probes", "records", "measurements", "failed", "shards")
    return {
        **{name: sum(entry[name] for entry in report.values()) for name in totals},
        "versions_filled": sum(receipt.statistics["versions_filled"] for receipt in run.scattered),
        "probe_splits": report,
    }


def _reject_links(scattered: Sequence[Receipt]) -> dict[str, FileRecord]:
    found = [r for receipt in scattered for r in receipt.files if r.path.endswith(f"/{REJECTS}")]
    return {f"rejects/input-{number:06d}.parquet": record for number, record in enumerate(found)}


def _lineage(run: WrittenRun) -> dict[str, str]:
    return {
        f"{receipt.task}/{number:06d}": receipt.stage
        for receipts in (run.scattered, run.gathered)
        for number, receipt in enumerate(receipts)
    }
