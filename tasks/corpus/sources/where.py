"""Filter rows by the values of columns, as `where` of pack-sft does: equal, or a list that contains the value."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.inputs.columns import is_text

Where = Mapping[str, str | int | bool]


def can_match(found: pa.DataType) -> bool:
    """Return whether a column of this type can equal a text, a whole number or a truth value, or list some."""
    if _is_list(found) or pa.types.is_dictionary(found):
        found = found.value_type
    kinds = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_null)
    return is_text(found) or any(is_kind(found) for is_kind in kinds)


def matches(batch: pa.RecordBatch, where: Where) -> NDArray[np.bool_]:
    """Return bool[rows]: whether each row has all the values.

    >>> batch = pa.record_batch({"lang": ["en", None, "de"], "tags": [["a", "b"], ["a"], []]})
    >>> matches(batch, {"lang": "en"}).tolist(), matches(batch, {"tags": "a"}).tolist()
    ([True, False, False], [True, True, False])
    """
    kept = np.ones(batch.num_rows, dtype=bool)
    for name, value in where.items():
        kept &= _matches(batch.column(batch.schema.get_field_index(name)), value)
    return kept


def _matches(column: pa.Array, value: str | int | bool) -> NDArray[np.bool_]:
    if _is_list(column.type):
        inside = _matches(column.flatten(), value)
        found = np.zeros(len(column), dtype=bool)
        found[column.value_parent_indices().to_numpy(zero_copy_only=False)[inside]] = True
        return found
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not _can_equal(column.type, value):
        return np.zeros(len(column), dtype=bool)
    if is_text(column.type):
        column = column.cast(pa.string())
    equal = pc.equal(column, pa.scalar(value, column.type))
    return np.asarray(pc.fill_null(equal, False).to_numpy(zero_copy_only=False))


def _can_equal(found: pa.DataType, value: str | int | bool) -> bool:
    """Return whether a value of this type can equal `value`; as in JSON, 1, true and "1" are different."""
    if isinstance(value, bool):
        return bool(pa.types.is_boolean(found))
    if isinstance(value, str):
        return is_text(found)
    if not (pa.types.is_integer(found) or pa.types.is_floating(found)):
        return False
    try:
        return bool(pa.scalar(value, found).as_py() == value)
    except (pa.ArrowInvalid, OverflowError):
        # Out of the type's range, or not a number that it has exactly.
        return False


def _is_list(found: pa.DataType) -> bool:
    return bool(pa.types.is_list(found) or pa.types.is_large_list(found))
