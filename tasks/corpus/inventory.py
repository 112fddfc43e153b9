"""Read from the files' footers what is in them: rows, row groups, and whether texts can be null.

Nothing is written before every file has been opened, and every unusable file is named.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.corpus import CorpusDatasetConfig, OnError, SampleCorpusConfig
from schemas.errors import InputError
from tasks.corpus.identity import BucketSource
from tasks.corpus.where import can_match
from tasks.inputs.columns import as_text, is_bytes, is_text, without_views
from tasks.inputs.files import InputFile
from tasks.run.identity import Identity
from tasks.storage.parquet import PARQUET_ERRORS, open_parquet
from tasks.storage.parquet_batches import parquet_batches
from tasks.storage.threads import map_threads

_NAMED = 20
_CHECK_ROWS = 4096


@dataclass(frozen=True)
class RowGroup:
    """Count the rows and uncompressed bytes of one row group."""

    rows: int
    bytes: int


@dataclass(frozen=True)
class SourceFile:
    """Describe one readable file of a bucket.

    Attributes:
        path: the file; `name`: its path relative to the bucket's folder.
        digest: SHA-256 of its content.
        groups: its row groups, in file order.
        may_hold_nulls: the footer does not rule out null texts.
        keep_types: Arrow types of the columns to keep.
        seen: what the file looked like when it was hashed.
        may_be_invalid: texts may be not valid UTF-8: they are bytes, or were read and some are not.
    """

    path: str
    name: str
    digest: str
    groups: tuple[RowGroup, ...]
    may_hold_nulls: bool
    keep_types: tuple[str, ...] = ()
    seen: tuple[int, ...] = ()
    may_be_invalid: bool = False

    @property
    def rows(self) -> int:
        return sum(group.rows for group in self.groups)

    @property
    def may_be_bad(self) -> bool:
        """Whether a row may have no text."""
        return self.may_hold_nulls or self.may_be_invalid


@dataclass(frozen=True)
class SkippedFile:
    """Name a file or folder that was left out, and say why."""

    name: str
    reason: str
    detail: str


@dataclass(frozen=True)
class Bucket:
    """Describe a bucket after the inventory.

    Attributes:
        inputs: the files and count that were requested.
        files: the readable files, sorted by name; a file's position decides ties.
        skipped: files that `on_error: skip` left out.
    """

    inputs: BucketSource
    files: tuple[SourceFile, ...]
    skipped: tuple[SkippedFile, ...]

    @property
    def label(self) -> str:
        return self.inputs.name

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


def take_inventory(config: SampleCorpusConfig, identity: Identity[BucketSource]) -> tuple[Bucket, ...]:
    """Read the footer of every file, `io_workers` at once.

    Raises:
        InputError: `bad_files`: files cannot be used and `on_error` is not `skip`; the message names all of them.
    """
    # When bad files may be left out, every page is read now: a selection must not change half-way.
    thorough = config.on_error is OnError.SKIP
    jobs = [
        (file, digest, identity.seen[str(file.path)], entry.dataset, thorough)
        for entry in identity.sources
        for file, digest in zip(entry.files, entry.digests, strict=True)
    ]
    looked = iter(map_threads(lambda job: _look(*job), jobs, config.io_workers))
    buckets = tuple(_bucket(entry, [next(looked) for _ in entry.files]) for entry in identity.sources)
    if config.on_error is OnError.FAIL:
        _refuse(
            f"{bucket.label}/{skipped.name}: {skipped.detail}"
            for bucket in buckets
            for skipped in bucket.skipped
        )
    return buckets


def _bucket(entry: BucketSource, looked: list[SourceFile | SkippedFile]) -> Bucket:
    looked = list(_of_one_type(entry, looked))
    skipped = [found for found in looked if isinstance(found, SkippedFile)]
    if entry.missing:
        skipped.append(SkippedFile("", "missing_bucket", entry.missing))
    return Bucket(entry, tuple(found for found in looked if isinstance(found, SourceFile)), tuple(skipped))


def _of_one_type(
    entry: BucketSource, looked: list[SourceFile | SkippedFile]
) -> Iterable[SourceFile | SkippedFile]:
    """Skip files whose kept columns differ in type from the first file's: a Parquet file cannot hold both types."""
    first = next((found for found in looked if isinstance(found, SourceFile)), None)
    for found in looked:
        if isinstance(found, SourceFile) and first is not None and found.keep_types != first.keep_types:
            columns = ", ".join(entry.dataset.keep_columns)
            detail = f"keep_columns ({columns}) are {found.keep_types}, in {first.name} they are {first.keep_types}"
            yield SkippedFile(found.name, "bad_column", detail)
        else:
            yield found


def _refuse(faults: Iterable[str]) -> None:
    listed = list(faults)
    if listed:
        more = f"; and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
        raise InputError(
            f"{len(listed)} files cannot be sampled: {'; '.join(listed[:_NAMED])}{more}. Fix or remove them, or set "
            "on_error: skip",
            code="bad_files",
            where="datasets",
        )


def _look(
    entry: InputFile, digest: str, seen: list[int], dataset: CorpusDatasetConfig, thorough: bool
) -> SourceFile | SkippedFile:
    try:
        with open_parquet(entry.path) as file:
            fault = _column_fault(file.schema_arrow, dataset)
            if fault is not None:
                return SkippedFile(entry.name, *fault)
            metadata = file.metadata
            groups = tuple(_row_group(metadata, index) for index in range(metadata.num_row_groups))
            if sum(group.rows for group in groups) != metadata.num_rows:
                raise pa.ArrowInvalid(f"the footer promises {metadata.num_rows} rows")
            has_invalid = thorough and _read_through(file, dataset, metadata.num_rows)
            schema = file.schema_arrow
            return SourceFile(
                path=str(entry.path),
                name=entry.name,
                digest=digest,
                groups=groups,
                may_hold_nulls=_may_hold_nulls(metadata, dataset.text),
                may_be_invalid=has_invalid or is_bytes(schema.field(dataset.text).type),
                keep_types=tuple(
                    str(without_views(schema.field(column).type)) for column in dataset.keep_columns
                ),
                seen=tuple(seen),
            )
    except PARQUET_ERRORS as error:
        return SkippedFile(entry.name, "unreadable_file", f"not a readable Parquet file: {error}")


def _column_fault(schema: pa.Schema, dataset: CorpusDatasetConfig) -> tuple[str, str] | None:
    for column in (dataset.text, *dataset.keep_columns, *dataset.where):
        if len(schema.get_all_field_indices(column)) != 1:
            known = ", ".join(schema.names[:10])
            return "missing_column", f"no column {column!r} (columns: {known})"
    kind = schema.field(dataset.text).type
    if not (is_text(kind) or is_bytes(kind)):
        return "bad_column", f"the text column {dataset.text!r} is {kind}, not string or binary"
    for column in dataset.where:
        kind = schema.field(column).type
        if not can_match(kind):
            wanted = "a text, number, truth value or list of them"
            return "bad_column", f"the column {column!r} of where is {kind}, not {wanted}"
    return None


def _row_group(metadata: pq.FileMetaData, index: int) -> RowGroup:
    group = metadata.row_group(index)
    return RowGroup(group.num_rows, group.total_byte_size)


def _may_hold_nulls(metadata: pq.FileMetaData, column: str) -> bool:
    """Return whether the footer's statistics leave room for a null text."""
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        if group.num_columns != len(metadata.schema):
            # Asking such a footer for a column makes Arrow end the whole process.
            raise pa.ArrowInvalid(f"row group {index} has {group.num_columns} columns")
        for position in range(group.num_columns):
            chunk = group.column(position)
            if chunk.path_in_schema == column:
                statistics = chunk.statistics
                if statistics is None or not statistics.has_null_count or statistics.null_count:
                    return True
    return False


def _read_through(file: pq.ParquetFile, dataset: CorpusDatasetConfig, rows: int) -> bool:
    """Read every page; return whether a text is not valid UTF-8."""
    columns = list(dict.fromkeys([dataset.text, *dataset.keep_columns, *dataset.where]))
    seen = 0
    has_invalid = False
    for batch in parquet_batches(file, range(file.num_row_groups), columns, _CHECK_ROWS):
        seen += batch.num_rows
        _, invalid = as_text(batch.column(batch.schema.get_field_index(dataset.text)))
        has_invalid |= bool(invalid.any())
    if seen != rows:
        raise pa.ArrowInvalid(f"{rows - seen} rows of the footer are not in the pages")
    return has_invalid
