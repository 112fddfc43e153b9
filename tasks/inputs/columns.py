"""Check a Parquet file column by column: present, of its type, without nulls, and valid UTF-8 if it is text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.verdict import Fault
from tasks.storage.parquet import PARQUET_ERRORS, open_parquet

_BATCH_ROWS = 1_024

# Whether a column may have this type.
IsType = Callable[[pa.DataType], bool]


def is_text(found: pa.DataType) -> bool:
    """Return whether values of this type are text, however they are stored."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    return bool(pa.types.is_string(found) or pa.types.is_large_string(found))


def check_columns(path: Path, columns: Mapping[str, tuple[IsType, str]]) -> tuple[int, list[Fault]]:
    """Read some columns of a file to its end; return the number of rows, and the faults.

    Args:
        columns: name to the expected type, as a test and in words. Other columns are ignored.
    """
    where = str(path)
    rows = 0
    found: dict[tuple[str, str], tuple[int, int]] = {}
    try:
        with open_parquet(path) as file:
            schema = file.schema_arrow
            faults = [Fault(where=where, rule="schema", detail=d) for d in _schema_faults(schema, columns)]
            if faults:
                return int(file.metadata.num_rows), faults
            for batch in file.iter_batches(_BATCH_ROWS, columns=list(columns), use_threads=False):
                for rule, detail, bad in _row_faults(batch):
                    first, count = found.get((rule, detail), (rows + int(bad[0]), 0))
                    found[rule, detail] = (first, count + len(bad))
                rows += batch.num_rows
    except PARQUET_ERRORS as error:
        return rows, [Fault(where=where, rule="readable", detail=f"not a readable Parquet file: {error}")]
    return rows, [
        Fault(where=f"{where}:{first}", rule=rule, detail=detail, count=count)
        for (rule, detail), (first, count) in found.items()
    ]


def _schema_faults(schema: pa.Schema, columns: Mapping[str, tuple[IsType, str]]) -> Iterator[str]:
    for name, (is_type, expected) in columns.items():
        index = schema.get_field_index(name)
        if index < 0:
            yield f"the column {name!r} is missing or repeated"
        elif not is_type(schema.field(index).type):
            yield f"{name!r} is {schema.field(index).type}, expected {expected}"


def _row_faults(batch: pa.RecordBatch) -> Iterator[tuple[str, str, NDArray[np.int64]]]:
    """Yield rule, detail and rows of each fault in a batch."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        nulls = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))
        if len(nulls):
            yield "no_nulls", f"{name!r} is null", nulls
        if is_text(column.type):
            bad = _bad_text(column)
            if len(bad):
                yield "utf8", f"{name!r} is not valid UTF-8", bad


def _bad_text(column: pa.Array) -> NDArray[np.int64]:
    try:
        column.validate(full=True)
        return np.empty(0, np.int64)
    except pa.ArrowInvalid:
        # Check value by value only now: nearly every column is valid.
        values = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        return np.flatnonzero([not _is_utf8(value) for value in values.cast(pa.large_binary()).to_pylist()])


def _is_utf8(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True
