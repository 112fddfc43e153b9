"""Read from a Parquet file's footer what is in it, and whether it can be sampled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.corpus import CorpusDatasetConfig
from tasks.corpus.sources.where import can_match
from tasks.inputs.columns import as_text, is_bytes, is_text, without_views
from tasks.storage.parquet import PARQUET_ERRORS, open_parquet, parquet_fault
from tasks.storage.parquet_batches import parquet_batches

_CHECK_ROWS = 4096


def look(path: Path, dataset: CorpusDatasetConfig, thorough: bool) -> dict[str, Any]:
    """Return what is in a file, or why it cannot be sampled, as JSON values.

    Args:
        thorough: read every page.

    Raises:
        InputError: `unreadable`: the system refuses to read it, which says nothing about its content.
    """
    try:
        with open_parquet(path) as file:
            fault = _column_fault(file.schema_arrow, dataset)
            if fault is not None:
                return _fault(*fault)
            metadata = file.metadata
            groups = [_row_group(metadata, index) for index in range(metadata.num_row_groups)]
            if sum(rows for rows, _ in groups) != metadata.num_rows:
                raise pa.ArrowInvalid(f"the footer promises {metadata.num_rows} rows")
            has_invalid = thorough and _read_through(file, dataset, metadata.num_rows)
            schema = file.schema_arrow
            return {
                "groups": groups,
                "may_hold_nulls": _may_hold_nulls(metadata, dataset.text),
                "may_be_invalid": has_invalid or is_bytes(schema.field(dataset.text).type),
                "keep_types": [str(without_views(schema.field(name).type)) for name in dataset.keep_columns],
            }
    except PARQUET_ERRORS as error:
        refused = parquet_fault(error, str(path))
        if refused.code == "unreadable":
            raise refused from error
        return _fault("unreadable_file", f"not a readable Parquet file: {error}")


def _fault(reason: str, detail: str) -> dict[str, Any]:
    return {"reason": reason, "detail": detail}


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


def _row_group(metadata: pq.FileMetaData, index: int) -> list[int]:
    group = metadata.row_group(index)
    return [group.num_rows, group.total_byte_size]


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
