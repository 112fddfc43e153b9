"""Prove a sample: recompute the hash rule on the source and compare, bucket by bucket.

The proof does not rely on how the cutoff was found. If exactly as many eligible rows as were requested lie at or
below a cutoff, they are the smallest; and if the sample contains the texts of just those rows, in order, it is right.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from schemas.corpus import OWN_COLUMNS, CorpusDatasetConfig, SampleCorpusConfig
from schemas.errors import GristmillError, IntegrityError
from schemas.run import FileRecord, Receipt, RunManifest
from schemas.verdict import WARNING, Fault, Verdict
from tasks.corpus.identity import DOMAIN, BucketSource, identify
from tasks.corpus.inventory import Bucket, SourceFile, take_inventory
from tasks.corpus.publish import SHARD_PREFIX, SampledBucket
from tasks.corpus.reading import iter_columns
from tasks.corpus.selection.cutoff import Cutoff, IdRange, keep_rows
from tasks.corpus.sources.where import matches
from tasks.corpus.stages import is_screened
from tasks.corpus.write import document_ids
from tasks.inputs.columns import as_text
from tasks.run.contract import Job, absolute_root
from tasks.run.identity import Identity
from tasks.run.layout import CONFIG, MANIFEST
from tasks.run.manifest import statistics_faults
from tasks.storage.parquet import PARQUET_ERRORS, open_parquet
from tasks.storage.reading import parse_json, read_bytes

_BATCH_ROWS = 512


@dataclass(frozen=True, kw_only=True)
class ValidateJob(Job):
    """The shards that one job wrote, to validate before they are published."""

    task: ClassVar[str] = "validate"
    files: tuple[FileRecord, ...]


def validate_jobs(config: SampleCorpusConfig, buckets: Sequence[SampledBucket]) -> list[ValidateJob]:
    """Return the jobs that validate what was written, in order: their keys are the digests of the shards."""
    return [
        ValidateJob(
            output_dir=absolute_root(config),
            stage=DOMAIN.stage_key("validate", files=[record.sha256 for record in receipt.files]),
            files=receipt.files,
            label=bucket.selection.bucket.label,
        )
        for bucket in buckets
        for receipt in bucket.written
    ]


def check_written(job: ValidateJob) -> Receipt:
    """Check that every shard is sound, and count its rows.

    The texts are not read again, which would take as long as the run itself; `validate` does so on demand.

    Raises:
        IntegrityError: a shard is damaged.
    """
    counts = []
    for record in job.files:
        rows, faults = _check_shard(job.root / record.path)
        Verdict(path=record.path, kind="file", faults=tuple(faults)).raise_if_bad()
        counts.append(rows)
    return job.receipt((), statistics={"rows": sum(counts)})


def check_totals(buckets: Sequence[SampledBucket], validated: Sequence[Receipt]) -> None:
    """Check that every bucket is complete, before a sample is published.

    Args:
        validated: the receipts of `validate_jobs`.

    Raises:
        IntegrityError: the shards of a bucket do not contain the rows that were selected.
    """
    rows = (receipt.statistics["rows"] for receipt in validated)
    for bucket in buckets:
        selection = bucket.selection
        wanted = min(selection.bucket.inputs.count, selection.job.eligible)
        found = sum(next(rows) for _ in bucket.written)
        if not found == wanted == selection.receipt.statistics["selected"]:
            raise IntegrityError(
                f"{wanted} rows should be sampled, but {selection.receipt.statistics['selected']} were selected "
                f"and the shards contain {found}",
                code="totals",
                where=selection.bucket.label,
            )


def validate_sample(folder: Path, manifest: RunManifest, full: bool) -> Verdict:
    """Validate the rows of a sample, and prove its selection against the source.

    Args:
        full: read the source's texts and compare every row; otherwise only count what the hash rule selects.

    Returns:
        A verdict with the counts `shards` and `rows`, and a warning if the source is gone or has changed, so that the
        selection could not be proved.
    """
    where = str(folder)
    shards = sorted(folder / r.path for r in manifest.outputs if r.path.startswith(SHARD_PREFIX))
    shards = [shard for shard in shards if shard.is_file()]
    counts = {"shards": len(shards), "rows": 0}
    faults: list[Fault] = []
    for shard in shards:
        rows, fault = _check_shard(shard)
        counts["rows"] += rows
        faults += fault
    if counts["rows"] != manifest.ledger.rows_used:
        detail = (
            f"the ledger says {manifest.ledger.rows_used} rows are used, the shards contain {counts['rows']}"
        )
        faults.append(Fault(where=where, rule="totals", detail=detail))
    if not faults:
        faults += _prove(folder, manifest, shards, full)
    return Verdict(path=where, kind="run", counts=counts, faults=tuple(faults))


def _check_shard(shard: Path) -> tuple[int, list[Fault]]:
    try:
        with open_parquet(shard) as file:
            schema = file.schema_arrow
            bad = [name for name in OWN_COLUMNS if not _is_text(schema, name)]
            detail = f"columns {', '.join(bad)} are missing or not of type string"
            faults = [Fault(where=str(shard), rule="schema", detail=detail)] if bad else []
            return int(file.metadata.num_rows), faults
    except PARQUET_ERRORS as error:
        return 0, [Fault(where=str(shard), rule="readable", detail=f"not a readable Parquet file: {error}")]


def _is_text(schema: pa.Schema, name: str) -> bool:
    index = schema.get_field_index(name)
    return index >= 0 and bool(pa.types.is_string(schema.field(index).type))


def _prove(folder: Path, manifest: RunManifest, shards: list[Path], full: bool) -> list[Fault]:
    try:
        config, identity = _source(folder)
        buckets = take_inventory(config, identity)
    except (GristmillError, OSError, ValueError) as error:
        return [_unproved(folder, f"the source cannot be read: {error}")]
    if identity.run_hash != manifest.run_hash:
        return [_unproved(folder, "the source or its path has changed since the run")]
    rows = _SampleRows(shards, [*OWN_COLUMNS, *([config.id_name] if config.id_name else [])])
    try:
        with statistics_faults(str(folder / MANIFEST)):
            cutoffs = [
                Cutoff(*map(operator.index, entry["cutoff"])) for entry in manifest.statistics["buckets"]
            ]
            bounds = list(zip(buckets, cutoffs, strict=True))
        for bucket, cutoff in bounds:
            fault = _prove_bucket(config, bucket, cutoff, rows, full)
            if fault is not None:
                return [fault]
        if full and rows.left():
            detail = "the sample contains rows that no bucket selects"
            return [Fault(where=str(folder), rule="selection", detail=detail)]
    except IntegrityError as error:
        return [Fault(where=error.where, rule=error.code, detail=error.message)]
    return []


def _source(folder: Path) -> tuple[SampleCorpusConfig, Identity[BucketSource]]:
    raw: dict[str, Any] = parse_json(read_bytes(folder / CONFIG))
    config = SampleCorpusConfig.parse(raw)
    return config, identify(config)


def _unproved(folder: Path, detail: str) -> Fault:
    return Fault(
        where=str(folder), rule="proof", detail=f"the selection could not be proved: {detail}", level=WARNING
    )


def _prove_bucket(
    config: SampleCorpusConfig, bucket: Bucket, cutoff: Cutoff, rows: _SampleRows, full: bool
) -> Fault | None:
    dataset, name, wanted = bucket.inputs.dataset, bucket.inputs.bucket, bucket.inputs.count
    eligible = kept = 0
    for index, file in enumerate(bucket.files):
        mask = keep_rows(config.random_seed, name, file.name, IdRange(index, 0, file.rows), cutoff)
        if not (full or is_screened(config, bucket, file)):
            eligible += file.rows
            kept += int(mask.sum())
            continue
        for row, text, allowed in _texts(config, dataset, file):
            chosen = mask[row : row + len(allowed)] & allowed
            eligible += int(allowed.sum())
            kept += int(chosen.sum())
            if full:
                expected = text.filter(pa.array(chosen))
                others = {}
                if config.id_name is not None:
                    others[config.id_name] = document_ids(name, file.name, row + np.flatnonzero(chosen))
                fault = rows.expect(expected, dataset.name, name, others)
                if fault is not None:
                    return fault
    if kept != min(wanted, eligible):
        detail = f"{kept} rows lie at or below the cutoff; {wanted} were requested, {eligible} are eligible"
        return Fault(where=bucket.label, rule="selection", detail=detail)
    return None


def _texts(
    config: SampleCorpusConfig, dataset: CorpusDatasetConfig, file: SourceFile
) -> Iterator[tuple[int, pa.Array, NDArray[np.bool_]]]:
    """Yield the first row, the texts, and which of them may be sampled, batch by batch."""
    row = 0
    columns = list(dict.fromkeys([dataset.text, *dataset.where]))
    for batch in iter_columns(file.path, file.name, range(len(file.groups)), columns, config.batch_rows):
        text, _ = as_text(batch.column(0))
        length = pc.fill_null(pc.utf8_length(text), -1).to_numpy(zero_copy_only=False)
        allowed = length >= config.min_characters
        if config.max_characters is not None:
            allowed &= length <= config.max_characters
        yield row, text, allowed & matches(batch, dataset.where)
        row += batch.num_rows


class _SampleRows:
    """Compare the sample's rows, in order, with those the source says they should be."""

    def __init__(self, shards: list[Path], columns: list[str]) -> None:
        self._columns = columns
        self._batches = self._read(shards)
        self._batch: pa.RecordBatch | None = None
        self._shard = ""
        self._row = 0

    def _read(self, shards: list[Path]) -> Iterator[pa.RecordBatch]:
        for shard in shards:
            self._shard, self._row = str(shard), 0
            try:
                with open_parquet(shard) as file:
                    yield from file.iter_batches(_BATCH_ROWS, columns=self._columns, use_threads=False)
            except PARQUET_ERRORS as error:
                raise IntegrityError(
                    f"not a readable Parquet file: {error}", code="readable", where=str(shard)
                ) from error

    def left(self) -> bool:
        """Return whether there are rows that were not expected."""
        rest = self._batch.num_rows if self._batch is not None else 0
        return bool(rest) or any(batch.num_rows for batch in self._batches)

    def expect(
        self, texts: pa.Array, dataset: str, bucket: str, others: Mapping[str, pa.Array]
    ) -> Fault | None:
        """Compare the next rows with these texts of this data set and bucket; return the first difference.

        Args:
            others: more columns of the sample, by name.
        """
        own = (texts, pa.repeat(dataset, len(texts)), pa.repeat(bucket, len(texts)))
        wanted = {**dict(zip(OWN_COLUMNS, own, strict=True)), **others}
        done = 0
        while done < len(texts):
            if self._batch is None or not self._batch.num_rows:
                self._batch = next(self._batches, None)
                if self._batch is None:
                    return Fault(
                        where=self._shard, rule="selection", detail="the sample ends before its last row"
                    )
            count = min(len(texts) - done, self._batch.num_rows)
            for column, values in wanted.items():
                expected = values.slice(done, count)
                found = self._batch.column(self._batch.schema.get_field_index(column)).slice(0, count)
                differs = np.flatnonzero(pc.not_equal(found, expected).to_numpy(zero_copy_only=False))
                if len(differs):
                    where = f"{self._shard}:{self._row + int(differs[0])}"
                    return Fault(
                        where=where, rule="selection", detail=f"{column} is not what the hash rule selects"
                    )
            self._batch = self._batch.slice(count)
            self._row += count
            done += count
        return None
