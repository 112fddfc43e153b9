"""Read CSV as columns of text, for flows that work on columns.

Up to the first quote, lone carriage return, byte that is not UTF-8 or line that may have a field too long for
`csv_rows`, a line is a row, and Arrow parses it. From there on `csv_rows` does, several times slower: Arrow does not
see that quotes do not pair up. Both give the same rows, numbers and faults.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from schemas.errors import InputError
from tasks.inputs.csv_rows import MAX_FIELD, field_count, header_of, rows_of
from tasks.inputs.readers import OVERLONG, RowFault, text_chunks, text_lines
from tasks.inputs.segments import Segment

# Batches of plain rows that become columns together.
_BATCHES = 32


@dataclass(frozen=True)
class TextColumns:
    """Hold consecutive rows of a file.

    Attributes:
        numbers: int64[n], the number of each row.
        columns: for each wanted name, its text, null for an empty field; `None` if the file has no such column.
        faults: why rows could not be read, by their place here; these rows have nulls.
    """

    numbers: NDArray[np.int64]
    columns: tuple[pa.StringArray | None, ...]
    faults: dict[int, RowFault]


def read_csv_columns(segment: Segment, names: Sequence[str | None]) -> Iterator[TextColumns]:
    """Yield the rows of a file in order, as columns.

    Args:
        names: the columns to read; `None` for none.

    Raises:
        InputError: as `csv_rows.read_csv`.
    """
    blocks = text_lines(text_chunks(segment))
    header: list[str] = []
    row = line = 0
    for lines in blocks:
        data = b"\n".join(lines) + b"\n"
        if OVERLONG in lines or max(map(len, lines)) > MAX_FIELD or not _is_simple(data):
            yield from _slowly(segment, names, header, chain([lines], blocks), row, line)
            return
        line += len(lines)
        if not header:
            header, data = _cut_header(segment, lines)
        if header:
            try:
                found = _parsed(data, header, names, row)
            except pa.ArrowException as error:
                raise InputError(
                    f"the rows from number {row} on are not readable as CSV: {error}",
                    code="bad_csv",
                    where=segment.name,
                ) from error
            row += len(found.numbers)
            if len(found.numbers):
                yield found


def _is_simple(data: bytes) -> bool:
    """Return whether each line is a row whose fields are between commas."""
    if b'"' in data or data.count(b"\r") != data.count(b"\r\n"):
        return False
    try:
        # Arrow's own message about a broken row fails otherwise.
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _cut_header(segment: Segment, lines: list[bytes]) -> tuple[list[str], bytes]:
    """Return the first line that is not blank as the header, and the rest."""
    for place, line in enumerate(lines):
        header = header_of(segment, [line])
        if header:
            return header, b"\n".join(lines[place + 1 :]) + b"\n"
    return [], b""


def _parsed(data: bytes, header: list[str], names: Sequence[str | None], first_row: int) -> TextColumns:
    faults: list[tuple[int, int]] = []

    def refuse(row: pa.csv.InvalidRow) -> str:
        # Rows count from 1.
        faults.append((row.number - 1, row.actual_columns))
        return "skip"

    wanted = [name for name in names if name in header]
    columns: dict[str, pa.Array] = dict.fromkeys(wanted, pa.array([], pa.string()))
    rows = 0
    # Not white space: a line of spaces is a row.
    if data.strip(b"\r\n"):
        table = pa.csv.read_csv(
            pa.BufferReader(data),
            pa.csv.ReadOptions(column_names=header, use_threads=False, block_size=len(data) + 1),
            pa.csv.ParseOptions(quote_char=False, invalid_row_handler=refuse),
            pa.csv.ConvertOptions(
                check_utf8=False,
                include_columns=wanted,
                column_types=dict.fromkeys(wanted, pa.binary()),
                null_values=[""],
                strings_can_be_null=True,
            ),
        )
        rows = table.num_rows + len(faults)
        places = np.full(rows, -1, np.int64)
        good = np.ones(rows, bool)
        good[[place for place, _ in faults]] = False
        places[good] = np.arange(table.num_rows)
        taken = pa.array(places, mask=~good)
        for name in wanted:
            column = table.column(name).combine_chunks().view(pa.string())
            columns[name] = column.take(taken) if faults else column
    return TextColumns(
        np.arange(first_row, first_row + rows),
        tuple(None if name is None else columns.get(name) for name in names),
        {place: field_count(fields, len(header)) for place, fields in faults},
    )


def _slowly(
    segment: Segment,
    names: Sequence[str | None],
    header: list[str],
    blocks: Iterator[list[bytes]],
    row: int,
    line: int,
) -> Iterator[TextColumns]:
    batches = rows_of(segment, blocks, header, row, line)
    while batch := [*chain.from_iterable(islice(batches, _BATCHES))]:
        values = [{} if isinstance(value, RowFault) else value for _, value in batch]
        yield TextColumns(
            np.array([number for number, _ in batch], np.int64),
            tuple(
                None if name is None else pa.array([value.get(name) for value in values], pa.string())
                for name in names
            ),
            {place: value for place, (_, value) in enumerate(batch) if isinstance(value, RowFault)},
        )
