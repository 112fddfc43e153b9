"""Read measurements in plain Python, value by value, to prove what the run made of them.

Nothing here is shared with the reading of a run except decompression and the elements of a JSON array. Rows that
cannot be read are left out: the run has rejected them, or the proof finds a difference.
"""

from __future__ import annotations

import codecs
import datetime
import decimal
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import pyarrow as pa
import pyarrow.csv

from schemas.errors import InputError
from schemas.probes import END_TIME_S, BuildProbeRowsConfig, MeasurementFormat
from tasks.inputs.files import InputFile
from tasks.inputs.json_array import is_array, read_array
from tasks.inputs.readers import text_chunks
from tasks.inputs.segments import Segment, whole_file
from tasks.probes.identity import format_of, text_format
from tasks.storage.parquet import open_parquet, parquet_faults

_BATCH_ROWS = 10_000
_BLOCK_BYTES = 16 << 20
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

PLAIN_SCHEMA = pa.schema(
    [
        ("file", pa.int32()),
        ("row", pa.int64()),
        ("reply", pa.int32()),
        ("event_time", pa.int64()),
        ("src_addr", pa.string()),
        ("dst_addr", pa.string()),
        ("ip_version", pa.int32()),
        ("rtt", pa.float32()),
    ]
)

# A row's number, that of its reply, and its five values as they come.
_Row = tuple[Any, ...]


def plain_batches(
    config: BuildProbeRowsConfig, files: Sequence[InputFile], numbers: Iterable[int]
) -> Iterator[pa.RecordBatch]:
    """Yield the readable rows of some files as batches of `PLAIN_SCHEMA`.

    Args:
        config: of the run.
        files: all input files; `numbers`: which of them to read.

    Raises:
        InputError: a file cannot be read to its end.
    """
    for number in numbers:
        rows = _read(config, files[number])
        read = (plain for row in rows if (plain := _plain(number, row, config)) is not None)
        while some := list(islice(read, _BATCH_ROWS)):
            arrays = [
                pa.array(values, kind)
                for values, kind in zip(zip(*some, strict=True), PLAIN_SCHEMA.types, strict=True)
            ]
            yield pa.record_batch(arrays, schema=PLAIN_SCHEMA)


def _plain(number: int, row: _Row, config: BuildProbeRowsConfig) -> tuple[Any, ...] | None:
    place, reply, time, src, dst, version, rtt = row
    unit = "s" if config.format is MeasurementFormat.ATLAS else config.event_time_unit
    try:
        micros = _micros(time, _PER_SECOND[unit] if unit else 0)
        stated = math.nan if version is None else float(version)
        # A float that is not a number, or its text in any spelling, stands for a missing version.
        family = (6 if ":" in dst else 4) if math.isnan(stated) else int(stated)
        if not 0 <= micros < END_TIME_S * 10**6 or family not in (4, 6):
            return None
        # Half of a UTF-16 pair is an error here; DuckDB would stop at it.
        f"{src}{dst}".encode()
        return number, place, reply, micros, str(src), str(dst), family, float(rtt)
    except (TypeError, ValueError, OverflowError):
        return None


def _micros(time: Any, per_second: int) -> int:
    """Return microseconds since 1970.

    >>> _micros("2020-09-08T00:02:20.5+00:00", 0), _micros("1.5", 1000), _micros(1_999, 10**9)
    (1599523340500000, 1500, 1)
    """
    if isinstance(time, str) and re.fullmatch(r"[-+]?\d+", time):
        time = int(time)
    elif isinstance(time, str) and re.fullmatch(r"[-+.\deE]+", time):
        time = float(time)
    if isinstance(time, decimal.Decimal):
        time = float(time)
    if isinstance(time, str):
        parsed = datetime.datetime.fromisoformat(time)
        zoned = parsed if parsed.tzinfo else parsed.replace(tzinfo=datetime.UTC)
        return (zoned - _EPOCH) // datetime.timedelta(microseconds=1)
    if not per_second:
        raise ValueError("a number without a unit")
    if isinstance(time, int):
        return time * 10**6 // per_second
    scaled: float = time * (10**6 // per_second) if per_second <= 10**6 else time / (per_second // 10**6)
    return round(scaled)


def _read(config: BuildProbeRowsConfig, file: InputFile) -> Iterator[_Row]:
    kind = format_of(file.path.name, config.format)
    columns = config.columns
    names = [columns.event_time, columns.src_addr, columns.dst_addr, columns.ip_version, columns.rtt]
    if kind is MeasurementFormat.PARQUET:
        return _parquet(file, names)
    segment = whole_file(file, text_format(file.path.name, kind))
    if kind is MeasurementFormat.CSV:
        return _csv(segment, names)
    objects = _array(segment) if kind is MeasurementFormat.ATLAS and is_array(segment) else _lines(segment)
    if kind is MeasurementFormat.ATLAS:
        return _results(objects, columns.src_addr)
    return (
        (row, 0, *(None if name is None else value.get(name) for name in names)) for row, value in objects
    )


def _parquet(file: InputFile, names: Sequence[str | None]) -> Iterator[_Row]:
    row = 0
    with parquet_faults(file.name), open_parquet(file.path, coerce_int96_timestamp_unit="us") as source:
        known = [name for name in names if name in source.schema_arrow.names]
        for batch in source.iter_batches(_BATCH_ROWS, columns=known, use_threads=False):
            columns = [
                _values(batch.column(name)) if name in known else [None] * batch.num_rows for name in names
            ]
            for values in zip(*columns, strict=True):
                yield row, 0, *values
                row += 1


def _values(column: pa.Array) -> list[Any]:
    if not pa.types.is_timestamp(column.type):
        listed: list[Any] = column.to_pylist()
        return listed
    # As text, which has no unit, because Python's times have no nanoseconds.
    per_second = _PER_SECOND[column.type.unit]
    instants = (
        None if value is None else value * 10**6 // per_second
        for value in column.view(pa.int64()).to_pylist()
    )
    return [_iso(micros) for micros in instants]


def _iso(micros: int | None) -> str | None:
    if micros is None or not 0 <= micros < END_TIME_S * 10**6:
        return None
    return (_EPOCH + datetime.timedelta(microseconds=micros)).isoformat()


def _csv(segment: Segment, names: Sequence[str | None]) -> Iterator[_Row]:
    broken: list[int] = []

    def skip(row: Any) -> str:
        # The first row after the header has the number 2.
        broken.append(row.number - 2)
        return "skip"

    # Escaped, because Arrow's message about a broken row must be UTF-8.
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    texts = (decoder.decode(chunk, final=not chunk) for chunk in chain(text_chunks(segment), [b""]))
    source = io.BufferedReader(_Stream(text.encode() for text in texts if text))
    wanted = [name for name in names if name is not None]
    try:
        with pa.csv.open_csv(
            source,
            pa.csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
            pa.csv.ParseOptions(newlines_in_values=True, invalid_row_handler=skip),
            # Not the other columns: Arrow would infer their types, and stop where a later block has another.
            pa.csv.ConvertOptions(
                include_columns=wanted,
                include_missing_columns=True,
                column_types=dict.fromkeys(wanted, pa.string()),
            ),
        ) as reader:
            row = passed = 0
            for batch in reader:
                columns = [
                    [None] * batch.num_rows if name is None else batch.column(name).to_pylist()
                    for name in names
                ]
                for values in zip(*columns, strict=True):
                    while passed < len(broken) and broken[passed] == row:
                        passed, row = passed + 1, row + 1
                    yield row, 0, *(value or None for value in values)
                    row += 1
    except pa.ArrowException as error:
        raise InputError(f"not readable as CSV: {error}", code="bad_csv", where=segment.name) from error


class _Stream(io.RawIOBase):
    """Chunks as an open file."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._left = self._left or next(self._chunks, b"")
        some, self._left = self._left[: len(buffer)], self._left[len(buffer) :]
        buffer[: len(some)] = some
        return len(some)


_Objects = Iterator[tuple[int, Mapping[str, Any]]]


def _lines(segment: Segment) -> _Objects:
    with io.BufferedReader(_Stream(text_chunks(segment))) as source:
        for row, line in enumerate(source):
            try:
                value = json.loads(line.decode("utf-8-sig"))
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                yield row, value


def _array(segment: Segment) -> _Objects:
    # The one reader that the run uses too: no other reads an array of any size.
    for batch in read_array(segment):
        for row, value in batch:
            if isinstance(value, dict):
                yield row, value


def _results(results: _Objects, source: str) -> Iterator[_Row]:
    older = {"src_addr": "srcaddr"}
    for row, result in results:
        if str(result.get("type") or result.get("msm_name") or "ping").lower() != "ping":
            continue
        listed = result.get("result")
        replies = [
            reply if isinstance(reply, dict) else {} for reply in (listed if isinstance(listed, list) else [])
        ]
        target = result.get("dst_addr") or result.get("addr")
        probe = result.get(source) or result.get(older.get(source, ""))
        own = [
            (reply.get("src_addr") or reply.get("srcaddr")) if source in older else None for reply in replies
        ]
        probe = probe or next(filter(None, own), None)
        for number, (reply, address) in enumerate(zip(replies, own, strict=True), start=1):
            failed = None if "rtt" not in reply and "x" not in reply and "error" not in reply else -1.0
            yield (
                row,
                number,
                result.get("timestamp"),
                address or probe,
                target,
                result.get("af"),
                reply.get("rtt", failed),
            )
