"""Convert the columns of measurements, as they come, to `CANONICAL`.

- `event_time`: whole microseconds since 1970, UTC, rounded down; a time without a zone is UTC. A number is a time
  in the configured unit (one with a fraction is rounded to the nearest microsecond), a text is ISO 8601 or such a
  number. Times out of range are clipped to just out of range.
- addresses: dictionaries, so that each distinct address is examined once for each run.
- `ip_version`: 4, 6, null, or 0 for any other value. `rtt`: float32 milliseconds.

A time or round trip that cannot be read becomes null, and a fault says why, whatever else is wrong with the row;
whether any other row is usable is decided afterwards, in `screening`.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from schemas.probes import END_TIME_S, INPUT_COLUMNS, TimeUnit
from tasks.inputs.columns import is_text

_ADDRESS = pa.dictionary(pa.int32(), pa.string())
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_END_US = END_TIME_S * 10**6

CANONICAL = pa.schema(
    [
        ("event_time", pa.int64()),
        ("src_addr", _ADDRESS),
        ("dst_addr", _ADDRESS),
        ("ip_version", pa.int8()),
        ("rtt", pa.float32()),
    ]
)

# Why a row cannot be used: a reason for the ledger and a detail for people.
Fault = tuple[str, str]

_WHOLE = r"^[-+]?(\d{1,18}|[0-8]\d{18})$"
_NUMBER = r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$"
_FLOAT = rf"{_NUMBER}|^(?i:[-+]?(nan|inf|infinity))$"
_ISO = r"^[1-9]\d{3}-\d\d-\d\d[T ]([01]\d|2[0-3]):\d\d(:\d\d([.,]\d{1,9})?)?(Z|[-+]\d\d(:?\d\d)?)?$"
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def is_number(kind: pa.DataType) -> bool:
    """Return whether values of this type are numbers."""
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind))


def looks_like_number(value: Any) -> bool:
    """Return whether a plain value is a number or the text of one.

    >>> looks_like_number(1.5), looks_like_number("1599523200"), looks_like_number("2020-09-08")
    (True, True, False)
    """
    if isinstance(value, str):
        return re.match(_NUMBER, value) is not None
    return isinstance(value, int | float)


def canonical(batch: pa.RecordBatch, unit: TimeUnit | None) -> tuple[pa.RecordBatch, dict[int, Fault]]:
    """Convert a batch of the five columns, of any types that `inventory.column_fault` allows, to `CANONICAL`.

    Args:
        batch: its columns in the order of `CANONICAL`.
        unit: of times that are numbers; `None` if there are none.

    Returns:
        The rows, and the fault of each row with a time or round trip that cannot be read.
    """
    time, src, dst, version, rtt = batch.columns
    faults: dict[int, Fault] = {}
    if unit is None and is_number(time.type):
        time = time.cast(pa.string())
    if is_text(time.type):
        time = _texts(time)
        times, bad = _text_times(time, unit)
        hint = "" if unit else "; for numbers set event_time_unit"
        faults |= _faults(time, bad, "bad_time", f"event_time is not an ISO 8601 time or a number{hint}")
    else:
        times = _times(time, unit)
    if is_text(rtt.type):
        rtt = _texts(rtt)
        rtts, bad = _doubles(rtt)
        faults = _faults(rtt, bad, "bad_rtt", "rtt is not a number") | faults
        rtt = rtts
    columns = [times, _addresses(src), _addresses(dst), _versions(version), _milliseconds(rtt)]
    return pa.record_batch(columns, schema=CANONICAL), faults


def plain_batch(rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """Return rows of plain values, in the order of `CANONICAL`, as a batch that `canonical` converts."""
    columns = zip(*rows, strict=True) if rows else [()] * len(INPUT_COLUMNS)
    arrays = [
        _array(values, as_text=name in ("src_addr", "dst_addr"))
        for name, values in zip(INPUT_COLUMNS, columns, strict=True)
    ]
    return pa.record_batch(arrays, names=list(INPUT_COLUMNS))


def _array(values: Sequence[Any], as_text: bool) -> pa.Array:
    kinds = {type(value) for value in values} - {type(None)}
    if not as_text and kinds == {float}:
        return pa.array(values, pa.float64())
    if not as_text and kinds == {int} and all(value is None or abs(value) < 2**63 for value in values):
        return pa.array(values, pa.int64())
    # Numbers among other values become text, which is converted value by value with the same result.
    texts = [value if value is None or type(value) is str else repr(value) for value in values]
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:
        # Half of a UTF-16 pair.
        safe = [text and text.encode(errors="backslashreplace").decode() for text in texts]
        return pa.array(safe, pa.string())


def _faults(texts: pa.StringArray, bad: NDArray[np.bool_], reason: str, why: str) -> dict[int, Fault]:
    rows = np.flatnonzero(bad)
    values = texts_of(texts.take(pa.array(rows)))
    return {
        int(row): (reason, f"{why}: {(value or '')[:80]!r}") for row, value in zip(rows, values, strict=True)
    }


def texts_of(column: pa.Array) -> list[str | None]:
    """Return the values of a column of text; what is not UTF-8 is escaped, because Arrow does not check it."""
    found = _texts(column).cast(pa.binary()).to_pylist()
    return [None if text is None else text.decode(errors="backslashreplace") for text in found]


def _texts(column: pa.Array) -> pa.StringArray:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column if column.type == pa.string() else column.cast(pa.string())


def _times(times: pa.Array, unit: TimeUnit | None) -> pa.Array:
    if unit is not None and is_number(times.type):
        return _numeric_times(times, unit)
    # The stored number is the instant in UTC, with a zone or without.
    return _whole_times(times.view(pa.int64()), times.type.unit)


def _numeric_times(times: pa.Array, unit: TimeUnit) -> pa.Array:
    if pa.types.is_integer(times.type):
        if times.type == pa.uint64():
            times = pc.min_element_wise(times, pa.scalar(2**63 - 1, pa.uint64()), skip_nulls=False)
        micros = _whole_times(times.cast(pa.int64()), unit.value)
        return _clipped(micros, _END_US)
    per_second = _PER_SECOND[unit.value]
    # NaN is how some tools write a missing number.
    seen = to_numpy(times.cast(pa.float64()), np.nan)
    scaled = seen * (10**6 // per_second) if per_second <= 10**6 else seen / (per_second // 10**6)
    micros = np.clip(np.rint(scaled), -1, _END_US)
    missing = np.isnan(seen)
    return pa.array(np.where(missing, 0, micros).astype(np.int64), mask=missing)


def _whole_times(values: pa.Int64Array, unit: str) -> pa.Array:
    if unit == "us":
        return values
    if unit == "ns":
        # Arrow divides towards zero, but a nanosecond before 1970 must stay before 1970.
        micros = np.floor_divide(to_numpy(values, 0), 1000)
        return pa.array(micros, mask=values.is_null().to_numpy(zero_copy_only=False))
    return pc.multiply(_clipped(values, END_TIME_S * _PER_SECOND[unit]), 10**6 // _PER_SECOND[unit])


def _clipped(values: pa.Int64Array, end: int) -> pa.Int64Array:
    return pc.max_element_wise(pc.min_element_wise(values, end, skip_nulls=False), -1, skip_nulls=False)


def _text_times(texts: pa.StringArray, unit: TimeUnit | None) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Return times, null where a text is not one, and where that is."""
    micros = np.zeros(len(texts), np.int64)
    known = np.zeros(len(texts), bool)
    kinds: list[tuple[str, Callable[[pa.StringArray], pa.Array]]] = [(_ISO, _iso_times)]
    if unit is not None:
        kinds += [
            # Arrow's integers have no plus sign.
            (_WHOLE, lambda found: _numeric_times(pc.utf8_ltrim(found, "+").cast(pa.int64()), unit)),
            (_NUMBER, lambda found: _numeric_times(found.cast(pa.float64()), unit)),
        ]
    for pattern, convert in kinds:
        like = _matching(texts, pattern) & ~known
        if like.any():
            found = convert(texts.filter(pa.array(like)))
            micros[like] = to_numpy(found, 0)
            known[like] = found.is_valid().to_numpy(zero_copy_only=False)
    there = texts.is_valid().to_numpy(zero_copy_only=False)
    return pa.array(micros, mask=~known), there & ~known


def _iso_times(texts: pa.StringArray) -> pa.Int64Array:
    # Arrow takes a whole column with zones or without, and no fraction of more than six digits.
    for zone in (None, "UTC"):
        try:
            return texts.cast(pa.timestamp("us", zone)).view(pa.int64())
        except pa.ArrowInvalid:
            continue
    return pa.array([_iso_time(text) for text in texts.to_pylist()], pa.int64())


def _iso_time(text: str) -> int | None:
    """Return microseconds since 1970; `None` if there is no such time.

    >>> _iso_time("2020-09-08T00:02:20.1234567+02:00"), _iso_time("2020-02-30 00:00")
    (1599516140123456, None)
    """
    try:
        time = datetime.datetime.fromisoformat(text)
        if time.tzinfo is None:
            time = time.replace(tzinfo=datetime.UTC)
        return (time - _EPOCH) // datetime.timedelta(microseconds=1)
    except (ValueError, OverflowError):
        return None


def _doubles(texts: pa.StringArray) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Return numbers, null where a text is not one, and where that is."""
    like = _matching(texts, _FLOAT)
    there = texts.is_valid().to_numpy(zero_copy_only=False)
    return pc.if_else(pa.array(like), texts, None).cast(pa.float64()), there & ~like


def _matching(texts: pa.StringArray, pattern: str) -> NDArray[np.bool_]:
    return to_numpy(pc.match_substring_regex(texts, pattern), False)


def to_numpy(column: pa.Array, null: Any) -> NDArray[Any]:
    """Return the values of a column, `null` for its nulls.

    >>> to_numpy(pa.array([1, None], pa.int8()), -1)
    array([ 1, -1], dtype=int8)
    """
    if column.null_count:
        column = pc.fill_null(column, null)
    values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return values


def _addresses(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type) and column.dictionary.null_count:
        column = column.dictionary_decode()
    if not pa.types.is_dictionary(column.type):
        column = column.cast(pa.string()).dictionary_encode()
    if column.type != _ADDRESS:
        column = pa.DictionaryArray.from_arrays(
            column.indices.cast(pa.int32()), column.dictionary.cast(pa.string())
        )
    return column


def _versions(column: pa.Array) -> pa.Array:
    if pa.types.is_null(column.type):
        column = column.cast(pa.int8())
    if column.type == pa.int8():
        return column
    if is_text(column.type):
        texts = _texts(column)
        numbers, bad = _doubles(texts)
        column = pc.if_else(pa.array(bad), 0.0, numbers)
    if pa.types.is_decimal(column.type) or pa.types.is_floating(column.type):
        # Arrow compares no float16.
        column = column.cast(pa.float64())
        # NaN is how some tools write a missing number.
        column = pc.if_else(pc.is_nan(column), None, column)
    known = pc.or_(pc.equal(column, pa.scalar(4, column.type)), pc.equal(column, pa.scalar(6, column.type)))
    return pc.if_else(known, column, pa.scalar(0, column.type)).cast(pa.int8())


def _milliseconds(column: pa.Array) -> pa.Array:
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    # An integer too precise for float32 is rounded; a double too large becomes infinite and is then rejected.
    return column if column.type == pa.float32() else column.cast(pa.float32(), safe=False)
