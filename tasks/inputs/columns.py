"""Check a Parquet file column by column: present, of its type, without nulls, and valid UTF-8 if it is text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(is_kind(found) for is_kind in kinds)


def is_bytes(found: pa.DataType) -> bool:
    """Return whether values of this type are bytes, which may be no text."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    return any(is_kind(found) for is_kind in kinds)


def without_views(found: pa.DataType) -> pa.DataType:
    """Return the type in which Arrow can filter and take values: it cannot do either with views.

    >>> without_views(pa.string_view()), without_views(pa.binary_view()), without_views(pa.int64())
    (DataType(string), DataType(binary), DataType(int64))
    """
    if pa.types.is_string_view(found):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(found) else found


def as_text(values: pa.Array) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Return texts or bytes as `string`, null where they are not valid UTF-8, and bool[n] that says where.

    A column of texts may hold others: Arrow does not check them when it reads a file.

    >>> texts, invalid = as_text(pa.array([b"a", b"\\xff", None]))
    >>> texts.to_pylist(), invalid.tolist()
    (['a', None, None], [False, True, False])
    """
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    invalid = np.zeros(len(values), dtype=bool)
    try:
        texts = values.cast(pa.string())
        texts.validate(full=True)
        return texts, invalid
    except pa.ArrowInvalid:
        # Look value by value only now: nearly every column is valid.
        plain = values.cast(pa.large_binary())
        invalid[:] = [not _is_utf8(value) for value in plain.to_pylist()]
        return pc.if_else(pa.array(~invalid), plain, None).cast(pa.string()), invalid


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
