"""Turn stage files into a published sample: numbered shards, sampling_info.json, the report, the manifest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.corpus import REPORT, SAMPLING_INFO, SampleCorpusConfig
from schemas.errors import IntegrityError
from schemas.run import FileRecord, Receipt, RowLedger
from tasks.corpus.stages import Selection
from tasks.run.layout import stage_folder
from tasks.run.publish import Contents, json_document, part_stages
from tasks.run.rejects import REJECTS_FOLDER, RejectWriter, numbered, reject_links
from tasks.storage.parquet import parquet_rows

SHARD_PREFIX = "train-"


@dataclass(frozen=True)
class SampledBucket:
    """Hold a bucket that was written.

    Attributes:
        selection: its cutoff and planned shards.
        screened: receipts of its screening; `written`: receipts of its shards, in order.
    """

    selection: Selection
    screened: tuple[Receipt, ...]
    written: tuple[Receipt, ...]

    @property
    def files(self) -> list[FileRecord]:
        return [record for receipt in self.written for record in receipt.files]

    @property
    def rows(self) -> list[int]:
        return [rows for receipt in self.written for rows in receipt.statistics["rows"]]


@dataclass(frozen=True)
class SampledRun:
    """Hold a written and validated sample.

    Attributes:
        run_hash: names the folder for files that belong to this run alone.
        ledger: row ledger of the whole run.
        validated: receipts of the validation.
    """

    config: SampleCorpusConfig
    run_hash: str
    buckets: tuple[SampledBucket, ...]
    ledger: RowLedger
    validated: tuple[Receipt, ...]


def contents(run: SampledRun) -> Contents:
    """Return the sample to publish, with rows counted from the files on disk.

    Raises:
        IntegrityError: a shard does not contain the rows that its receipt says.
        StorageError: the list of skipped files cannot be written.
    """
    root = Path(run.config.output_dir)
    names = shard_names(run.buckets)
    on_disk = {name: _count_rows(root, record, rows) for name, (record, rows) in names.items()}
    info = sampling_info(run, on_disk)
    return Contents(
        links={
            **{name: record for name, (record, _) in names.items()},
            **_reject_links(run.buckets),
            **_skipped_file(root, run),
        },
        documents={SAMPLING_INFO: json_document(info), REPORT: json_document(report(run.buckets))},
        ledger=run.ledger,
        statistics=_statistics(run, info),
        stages={**_lineage(run.buckets), **part_stages("validate", run.validated)},
    )


def shard_names(buckets: Sequence[SampledBucket]) -> dict[str, tuple[FileRecord, int]]:
    """Return the published name of every shard, in output order, with its record and planned rows."""
    shards = [pair for bucket in buckets for pair in zip(bucket.files, bucket.rows, strict=True)]
    return {f"{SHARD_PREFIX}{i:05d}-of-{len(shards):05d}.parquet": shard for i, shard in enumerate(shards)}


def _count_rows(root: Path, record: FileRecord, rows: int) -> int:
    found = parquet_rows(root / record.path)
    if found != rows:
        raise IntegrityError(
            f"{rows} rows were written but the file contains {found}", code="totals", where=record.path
        )
    return found


def sampling_info(run: SampledRun, on_disk: dict[str, int]) -> dict[str, Any]:
    """Return the summary that other tools read: rows requested and sampled, by source and bucket.

    Args:
        on_disk: rows counted in each published shard, in output order.
    """
    sources: dict[str, dict[str, Any]] = {}
    counts = iter(on_disk.values())
    for bucket in run.buckets:
        inputs = bucket.selection.bucket.inputs
        source = sources.setdefault(
            inputs.key,
            {
                "name": inputs.dataset.name,
                "source": inputs.dataset.source,
                "requested": 0,
                "sampled": 0,
                "buckets": {},
            },
        )
        sampled = sum(next(counts) for _ in bucket.files)
        source["buckets"][inputs.bucket] = {"requested": inputs.count, "sampled": sampled}
        source["requested"] += inputs.count
        source["sampled"] += sampled
        skipped = bucket.selection.bucket.skipped
        if skipped:
            source["buckets"][inputs.bucket]["skipped_files"] = [
                {"file": file.name, "reason": file.reason} for file in skipped
            ]
    return {
        "total_requested": sum(source["requested"] for source in sources.values()),
        "total_sampled": sum(source["sampled"] for source in sources.values()),
        "random_seed": run.config.random_seed,
        "sources": sources,
    }


def report(buckets: Sequence[SampledBucket]) -> list[dict[str, Any]]:
    """Return, for each bucket, its rows, requested and sampled documents, bytes, and a histogram of text bytes."""
    entries = []
    for bucket in buckets:
        selection = bucket.selection
        lengths: dict[int, int] = {}
        for receipt in bucket.written:
            for power, count in receipt.statistics["bytes_up_to_power_of_2"].items():
                lengths[int(power)] = lengths.get(int(power), 0) + count
        entries.append(
            {
                "source": selection.bucket.inputs.key,
                "bucket": selection.bucket.inputs.bucket,
                "files": len(selection.bucket.files),
                "rows": selection.bucket.rows,
                "eligible": selection.job.eligible,
                "requested": selection.bucket.inputs.count,
                "sampled": sum(bucket.rows),
                "shards": len(bucket.files),
                "text_bytes": sum(receipt.statistics["text_bytes"] for receipt in bucket.written),
                "stored_bytes": sum(record.bytes for record in bucket.files),
                "text_bytes_up_to": {str(2**power): count for power, count in sorted(lengths.items())},
                "cutoff": list(selection.cutoff),
            }
        )
    return entries


def _statistics(run: SampledRun, info: dict[str, Any]) -> dict[str, Any]:
    return {
        "requested": info["total_requested"],
        "sampled": info["total_sampled"],
        "shards": sum(len(bucket.files) for bucket in run.buckets),
        "text_bytes": sum(
            receipt.statistics["text_bytes"] for bucket in run.buckets for receipt in bucket.written
        ),
        "skipped_files": sum(len(bucket.selection.bucket.skipped) for bucket in run.buckets),
        "buckets": report(run.buckets),
    }


def _reject_links(buckets: Sequence[SampledBucket]) -> dict[str, FileRecord]:
    return reject_links(
        entry
        for bucket in buckets
        for entry in numbered(bucket.selection.bucket.label.replace("/", "-"), bucket.screened)
    )


def _skipped_file(root: Path, run: SampledRun) -> dict[str, FileRecord]:
    """List the skipped files, as rejects without a row number."""
    path = stage_folder(root, run.run_hash) / "skipped.parquet"
    with RejectWriter(path) as rejects:
        for bucket in run.buckets:
            for file in bucket.selection.bucket.skipped:
                rejects.add(f"{bucket.selection.bucket.label}/{file.name}", -1, file.reason, file.detail)
        records = rejects.finish(root)
    return {f"{REJECTS_FOLDER}/skipped-files.parquet": records[0]} if records else {}


def _lineage(buckets: Sequence[SampledBucket]) -> dict[str, str]:
    stages: dict[str, str] = {}
    for bucket in buckets:
        label = bucket.selection.bucket.label
        for part, stage in enumerate(bucket.selection.bucket.stages):
            stages[f"inventory/{label}/{part:06d}"] = stage
        stages[f"select/{label}"] = bucket.selection.receipt.stage
        stages |= part_stages("screen", bucket.screened, label)
        stages |= part_stages("write", bucket.written, label)
    return stages
