"""Read measurements: parts of many files, as runs of at most a quarter of a million rows of one Arrow type.

Types are unified by `values`; whether a row is usable is decided afterwards, in `screening`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.probes import INPUT_COLUMNS, MeasurementFormat, TimeUnit
from tasks.inputs.csv_columns import TextColumns, read_csv_columns
from tasks.inputs.csv_rows import read_csv
from tasks.inputs.json_array import read_array
from tasks.inputs.readers import RawRow, RowFault, read_rows
from tasks.inputs.segments import Segment
from tasks.probes.rows.atlas import replies
from tasks.probes.rows.pieces import Piece, Reading, RowGroups, TextSegment
from tasks.probes.rows.values import CANONICAL, Fault, canonical, plain_batch
from tasks.storage.parquet import open_parquet, parquet_faults

SPILL_ROWS = 1 << 18
# Rows of text that are Python objects at the same time.
_PLAIN_ROWS = 1 << 13


@dataclass(frozen=True)
class RowRange:
    """Locate the rows of a run that come from one file.

    Attributes:
        name: the file's name.
        first_row: number of the first row in its file; the others follow it, unless there are `numbers`.
        rows: how many there are.
        numbers: int64[rows], the number of each row.
        replies: int64[rows], for results with several rows, the number of each row in its result; 0 for none.
    """

    name: str
    first_row: int
    rows: int
    numbers: NDArray[np.int64] | None = None
    replies: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Origin:
    """Say where a row comes from: file, number, and what precedes the detail of a reject."""

    name: str
    row: int
    prefix: str = ""


@dataclass(frozen=True)
class RowBatch:
    """Hold consecutive input rows, in input order, as one batch of `CANONICAL`.

    Attributes:
        faults: why rows could not be read; these rows have nulls.
    """

    rows: pa.RecordBatch
    spans: tuple[RowRange, ...]
    faults: dict[int, Fault] = field(default_factory=dict)

    def origin(self, row: int) -> Origin:
        """Return where row `row` of the run comes from.

        Raises:
            IndexError: the run has no such row.
        """
        for span in self.spans:
            if row < span.rows:
                number = span.first_row + row if span.numbers is None else int(span.numbers[row])
                reply = 0 if span.replies is None else int(span.replies[row])
                return Origin(span.name, number, reply_prefix(reply))
            row -= span.rows
        raise IndexError(row)


def reply_prefix(reply: int) -> str:
    """Return what names a reply in the detail of a reject.

    >>> reply_prefix(2)
    'reply 2: '
    """
    return f"reply {reply}: " if reply else ""


def read_row_batches(
    pieces: Sequence[Piece], spill_rows: int = SPILL_ROWS, reading: Reading | None = None
) -> Iterator[RowBatch]:
    """Yield the rows of `pieces` in order, in runs of at most about `spill_rows`.

    Raises:
        InputError: a file cannot be read to its end.
    """
    reading = reading or Reading()
    batches: list[pa.RecordBatch] = []
    spans: list[RowRange] = []
    faults: dict[int, Fault] = {}
    held = 0
    for piece in pieces:
        for chunk in _chunks(piece, spill_rows, reading):
            if held + chunk.rows.num_rows > spill_rows and batches:
                yield _run(batches, spans, faults)
                batches, spans, faults, held = [], [], {}, 0
            batches.append(chunk.rows)
            spans += chunk.spans
            faults.update((held + row, fault) for row, fault in chunk.faults.items())
            held += chunk.rows.num_rows
    if batches:
        yield _run(batches, spans, faults)


def _run(batches: list[pa.RecordBatch], spans: list[RowRange], faults: dict[int, Fault]) -> RowBatch:
    table = pa.Table.from_batches(batches, CANONICAL).unify_dictionaries().combine_chunks()
    return RowBatch(table.to_batches()[0], tuple(spans), faults)


def _chunks(piece: Piece, spill_rows: int, reading: Reading) -> Iterator[RowBatch]:
    if isinstance(piece, TextSegment):
        yield from _text_chunks(piece, min(spill_rows, _PLAIN_ROWS), reading)
        return
    row = piece.first_row
    for batch in _parquet_batches(piece, spill_rows, reading):
        rows, faults = canonical(batch, reading.time_unit)
        yield RowBatch(rows, (RowRange(piece.name, row, batch.num_rows),), faults)
        row += batch.num_rows


def _parquet_batches(piece: RowGroups, batch_rows: int, reading: Reading) -> Iterator[pa.RecordBatch]:
    _, src, dst, *_ = reading.columns
    # In nanoseconds, the default, far times of the old int96 type would wrap around.
    options = {"read_dictionary": [src, dst], "coerce_int96_timestamp_unit": "us"}
    groups = list(range(piece.first_group, piece.end_group))
    with parquet_faults(piece.name), open_parquet(piece.path, **options) as file:
        known = file.schema_arrow.names
        columns = [name if name in known else None for name in reading.columns]
        seen = 0
        for batch in file.iter_batches(
            batch_rows, row_groups=groups, columns=[name for name in columns if name], use_threads=False
        ):
            seen += batch.num_rows
            # In a fixed order, not that of the file.
            yield pa.record_batch(
                [batch.column(name) if name else pa.nulls(batch.num_rows, pa.int8()) for name in columns],
                names=list(INPUT_COLUMNS),
            )
        if seen != piece.rows:
            raise pa.ArrowInvalid(f"{piece.rows - seen} rows of the footer are not in the pages")


def read_raw(segment: Segment) -> Iterator[list[RawRow]]:
    """Yield the rows of a text segment with their numbers, in small batches.

    Raises:
        InputError: the file cannot be read to its end.
    """
    readers: dict[str, Callable[[Segment], Iterator[list[RawRow]]]] = {"csv": read_csv, "json": read_array}
    return readers.get(segment.format.partition(".")[0], read_rows)(segment)


def _text_chunks(piece: TextSegment, most: int, reading: Reading) -> Iterator[RowBatch]:
    if piece.format is MeasurementFormat.CSV:
        for found in read_csv_columns(piece.segment, reading.columns):
            yield _csv_chunk(piece.name, found, reading.time_unit)
        return
    atlas = piece.format is MeasurementFormat.ATLAS
    expand = _atlas_rows if atlas else _named_rows
    unit = TimeUnit.S if atlas else reading.time_unit
    held: list[_PlainRow] = []
    for batch in read_raw(piece.segment):
        for number, value in batch:
            held += expand(number, value, reading)
            if len(held) >= most:
                yield _text_chunk(piece.name, held, unit)
                held = []
    if held:
        yield _text_chunk(piece.name, held, unit)


def _csv_chunk(name: str, found: TextColumns, unit: TimeUnit | None) -> RowBatch:
    columns = [
        pa.nulls(len(found.numbers), pa.string()) if column is None else column for column in found.columns
    ]
    rows, faults = canonical(pa.record_batch(columns, names=list(INPUT_COLUMNS)), unit)
    unread = {row: (fault.reason, fault.detail) for row, fault in found.faults.items()}
    return RowBatch(rows, (RowRange(name, 0, len(found.numbers), found.numbers),), faults | unread)


# A row's number, that of its reply, and its values or why it has none.
_PlainRow = tuple[int, int, "tuple[Any, ...] | RowFault"]


def _named_rows(number: int, value: Mapping[Any, Any] | RowFault, reading: Reading) -> list[_PlainRow]:
    if isinstance(value, RowFault):
        return [(number, 0, value)]
    # No row has a value under `None`, the name of a column that is not read.
    return [(number, 0, tuple(map(value.get, reading.columns)))]


def _atlas_rows(number: int, value: dict[str, Any] | RowFault, reading: Reading) -> list[_PlainRow]:
    if isinstance(value, RowFault):
        return [(number, 0, value)]
    source = reading.columns[INPUT_COLUMNS.index("src_addr")] or ""
    return [(number, reply, found) for reply, found in replies(value, source)]


def _text_chunk(name: str, held: list[_PlainRow], unit: TimeUnit | None) -> RowBatch:
    nothing = (None,) * len(INPUT_COLUMNS)
    unread = {
        row: (value.reason, value.detail)
        for row, (_, _, value) in enumerate(held)
        if isinstance(value, RowFault)
    }
    values = [nothing if isinstance(value, RowFault) else value for _, _, value in held]
    rows, faults = canonical(plain_batch(values), unit)
    numbers = np.array([number for number, _, _ in held], np.int64)
    parts = np.array([reply for _, reply, _ in held], np.int64)
    span = RowRange(name, 0, len(held), numbers, parts if parts.any() else None)
    return RowBatch(rows, (span,), faults | unread)
