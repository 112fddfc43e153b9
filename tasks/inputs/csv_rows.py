"""Read CSV with a header (RFC 4180), each row with its number, in batches of bounded memory.

Rows count from 0 after the header; blank lines do not count. A row becomes a dict of text by column, `None` for an
empty field. A row with another number of fields than the header is a `RowFault` under its own number. Quotes that do
not pair up stop the run: which of the lines after them are rows cannot be known. Bytes that are not UTF-8 become
`\\xff` in the text.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import islice

from schemas.errors import InputError
from tasks.inputs.readers import BATCH_ROWS, OVERLONG, RawRow, RowFault, text_chunks, text_lines
from tasks.inputs.segments import Segment

_BOM = "\ufeff"


def csv_header(segment: Segment) -> list[str]:
    """Return the names in a file's header; `[]` for an empty file.

    Raises:
        InputError: as `read_csv`.
    """
    return next(_records(segment), [])


def read_csv(segment: Segment) -> Iterator[list[RawRow]]:
    """Yield the rows of a file in order, in batches of up to 256.

    Raises:
        InputError: `bad_csv`: its quotes do not pair up; otherwise as `text_chunks`.
    """
    records = _records(segment)
    header = next(records, [])
    numbered = enumerate(_row(header, fields) for fields in records)
    while batch := list(islice(numbered, BATCH_ROWS)):
        yield batch


def _row(header: list[str], fields: list[str]) -> dict[str, str | None] | RowFault:
    if len(fields) != len(header):
        return RowFault("field_count", f"the row has {len(fields)} fields, the header has {len(header)}")
    row: dict[str, str | None] = dict(zip(header, fields, strict=True))
    return {name: field or None for name, field in row.items()} if "" in fields else row


def _records(segment: Segment) -> Iterator[list[str]]:
    """Yield the fields of the header and of each row."""
    # A quoted field longer than 128 KiB is refused, which bounds the memory that an open quote takes.
    reader = csv.reader(_text(segment), strict=True)
    first = 0
    try:
        for fields in reader:
            first = reader.line_num
            if fields:
                yield fields
    except csv.Error as error:
        raise InputError(
            f"the row that starts in line {first + 1} is not CSV: {error}; put fields with quotes or line breaks in "
            "quotes, and double the quotes in them",
            code="bad_csv",
            where=segment.name,
        ) from error


def _text(segment: Segment) -> Iterator[str]:
    first = True
    for lines in text_lines(text_chunks(segment)):
        for line in lines:
            if line == OVERLONG:
                raise csv.Error("the line is too long")
            text = line.decode(errors="backslashreplace") + "\n"
            yield text.removeprefix(_BOM) if first else text
            first = False
