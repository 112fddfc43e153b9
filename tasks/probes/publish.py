"""Turn stage files into published probe rows: numbered shards, the report, the manifest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from schemas.probes import REPORT, SHARD_SUFFIX, SPLITS, BuildProbeRowsConfig
from schemas.run import FileRecord, Receipt, RowLedger
from tasks.probes.counts import split_report
from tasks.run.publish import Contents, json_document, part_stages
from tasks.run.rejects import numbered, reject_links


@dataclass(frozen=True)
class WrittenRun:
    """Hold written and validated probe rows.

    Attributes:
        scattered, gathered: receipts of both passes, in order; `merged`: of what lies between them.
        ledger: row ledger of the whole run.
        validated: receipts of the validation.
    """

    config: BuildProbeRowsConfig
    scattered: tuple[Receipt, ...]
    merged: tuple[Receipt, ...]
    gathered: tuple[Receipt, ...]
    ledger: RowLedger
    validated: tuple[Receipt, ...]


def contents(run: WrittenRun) -> Contents:
    """Return the probe rows to publish."""
    statistics = run_statistics(run)
    return Contents(
        links={**shard_names(run.gathered), **reject_links(numbered("input", run.scattered))},
        documents={REPORT: json_document(statistics)},
        ledger=run.ledger,
        statistics=statistics,
        stages={
            **part_stages("scatter", run.scattered),
            **part_stages("merge", run.merged),
            **part_stages("gather", run.gathered),
            **part_stages("validate", run.validated),
        },
    )


def written_shards(gathered: Sequence[Receipt]) -> list[tuple[dict[str, Any], FileRecord]]:
    """Return the counts and the file of every shard, in the order in which they are published."""
    return [
        pair for receipt in gathered for pair in zip(receipt.statistics["shards"], receipt.files, strict=True)
    ]


def shard_names(gathered: Sequence[Receipt]) -> dict[str, FileRecord]:
    """Return the file of every shard by its published name."""
    names = {}
    shards = written_shards(gathered)
    for split in SPLITS:
        records = [record for counts, record in shards if counts["split"] == split]
        for number, record in enumerate(records):
            names[f"{split}-{number:05d}-of-{len(records):05d}{SHARD_SUFFIX}"] = record
    return names


def run_statistics(run: WrittenRun) -> dict[str, Any]:
    """Return the totals of the run, and its counts by split."""
    shards = written_shards(run.gathered)
    report = split_report([counts for counts, _ in shards], [record.bytes for _, record in shards])
    totals = ("probes", "records", "measurements", "failed", "shards")
    return {
        **{name: sum(entry[name] for entry in report.values()) for name in totals},
        "versions_filled": sum(receipt.statistics["versions_filled"] for receipt in run.scattered),
        "probe_splits": report,
    }
