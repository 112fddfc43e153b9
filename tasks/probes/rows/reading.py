"""Read measurements: row groups of many files, as runs of at most a quarter of a million rows of one Arrow type.

Types are unified here (`CANONICAL`); whether a row is usable is decided afterwards, in `screening`.

- `event_time`: whole microseconds since 1970, UTC, rounded down; a time without a zone is UTC. Times out of range in
  a coarse unit are clipped to just out of range.
- addresses: dictionaries, so that each distinct address is examined once for each run.
- `ip_version`: 4, 6, null, or 0 for any other number. `rtt`: float32 milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.probes import END_TIME_S, INPUT_COLUMNS
from tasks.storage.parquet import open_parquet, parquet_faults

SPILL_ROWS = 1 << 18
_ADDRESS = pa.dictionary(pa.int32(), pa.string())
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6}

CANONICAL = pa.schema(
    [
        ("event_time", pa.int64()),
        ("src_addr", _ADDRESS),
        ("dst_addr", _ADDRESS),
        ("ip_version", pa.int8()),
        ("rtt", pa.float32()),
    ]
)


@dataclass(frozen=True)
class RowGroups:
    """Locate consecutive row groups of one file.

    Attributes:
        path: the file; `name`: its name in rejects and hashes.
        digest: SHA-256 of the whole file.
        first_group, end_group: row groups to read.
        first_row: the row of the file at which they start; `rows`: how many rows they contain.
        seen: what the file looked like when it was hashed.
    """

    path: str
    name: str
    digest: str
    first_group: int
    end_group: int
    first_row: int
    rows: int
    seen: tuple[int, ...] = ()


@dataclass(frozen=True)
class RowRange:
    """Locate the rows of a run that come from one file: its name, and the number of their first row in it."""

    name: str
    first_row: int
    rows: int


@dataclass(frozen=True)
class RowBatch:
    """Hold consecutive input rows, in input order, as one batch of `CANONICAL`."""

    rows: pa.RecordBatch
    spans: tuple[RowRange, ...]

    def origin(self, row: int) -> tuple[str, int]:
        """Return the file that row `row` of the run comes from, and its number there.

        Raises:
            IndexError: the run has no such row.
        """
        for span in self.spans:
            if row < span.rows:
                return span.name, span.first_row + row
            row -= span.rows
        raise IndexError(row)


def read_row_batches(pieces: Sequence[RowGroups], spill_rows: int = SPILL_ROWS) -> Iterator[RowBatch]:
    """Yield the rows of `pieces` in order, in runs of at most about `spill_rows`.

    Raises:
        InputError: `unreadable` or `bad_parquet`: a file cannot be read to its end.
    """
    batches: list[pa.RecordBatch] = []
    spans: list[RowRange] = []
    held = 0
    for piece in pieces:
        row = piece.first_row
        for batch in _batches(piece, spill_rows):
            if held + batch.num_rows > spill_rows and batches:
                yield _run(batches, spans)
                batches, spans, held = [], [], 0
            batches.append(canonical(batch))
            spans.append(RowRange(piece.name, row, batch.num_rows))
            row += batch.num_rows
            held += batch.num_rows
    if batches:
        yield _run(batches, spans)


def _run(batches: list[pa.RecordBatch], spans: list[RowRange]) -> RowBatch:
    table = pa.Table.from_batches(batches, CANONICAL).unify_dictionaries().combine_chunks()
    return RowBatch(table.to_batches()[0], tuple(spans))


def _batches(piece: RowGroups, batch_rows: int) -> Iterator[pa.RecordBatch]:
    # In nanoseconds, the default, far times of the old int96 type would wrap around.
    options = {"read_dictionary": ["src_addr", "dst_addr"], "coerce_int96_timestamp_unit": "us"}
    groups = list(range(piece.first_group, piece.end_group))
    columns = list(INPUT_COLUMNS)
    with parquet_faults(piece.name), open_parquet(piece.path, **options) as file:
        seen = 0
        for batch in file.iter_batches(batch_rows, row_groups=groups, columns=columns, use_threads=False):
            seen += batch.num_rows
            # In a fixed order, not that of the file.
            yield batch.select(columns)
        if seen != piece.rows:
            raise pa.ArrowInvalid(f"{piece.rows - seen} rows of the footer are not in the pages")


def canonical(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert a batch of the five columns, of any types that `inventory.column_fault` allows, to `CANONICAL`."""
    time, src, dst, version, rtt = batch.columns
    columns = [_times(time), _addresses(src), _addresses(dst), _versions(version), _milliseconds(rtt)]
    return pa.record_batch(columns, schema=CANONICAL)


def _times(times: pa.Array) -> pa.Array:
    unit = times.type.unit
    # The stored number is the instant in UTC, with a zone or without.
    values = times.view(pa.int64())
    if unit == "us":
        return values
    if unit == "ns":
        # Arrow divides towards zero, but a nanosecond before 1970 must stay before 1970.
        micros = np.floor_divide(values.fill_null(0).to_numpy(zero_copy_only=False), 1000)
        return pa.array(micros, mask=values.is_null().to_numpy(zero_copy_only=False))
    end = END_TIME_S * _PER_SECOND[unit]
    clipped = pc.max_element_wise(pc.min_element_wise(values, end, skip_nulls=False), -1, skip_nulls=False)
    return pc.multiply(clipped, 10**6 // _PER_SECOND[unit])


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
    if column.type == pa.int8():
        return column
    known = pc.or_(pc.equal(column, pa.scalar(4, column.type)), pc.equal(column, pa.scalar(6, column.type)))
    return pc.if_else(known, column, pa.scalar(0, column.type)).cast(pa.int8())


def _milliseconds(column: pa.Array) -> pa.Array:
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    # An integer too precise for float32 is rounded; a double too large becomes infinite and is then rejected.
    return column if column.type == pa.float32() else column.cast(pa.float32(), safe=False)
