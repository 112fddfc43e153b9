"""Read CSV with a header (RFC 4180), each row with its number, in batches of bounded memory.

Rows count from 0 after the header; blank lines do not count. A row becomes a dict of text by column, `None` for an
empty field. A row with another number of fields than the header is a `RowFault` under its own number. Quotes that do
not pair up stop the run: which of the lines after them are rows cannot be known; so does a field of more than
`MAX_FIELD` characters. Bytes that are not UTF-8 become
`\\xff` in the text.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from itertools import islice

from schemas.errors import InputError
from tasks.inputs.readers import BATCH_ROWS, OVERLONG, RawRow, RowFault, text_chunks, text_lines
from tasks.inputs.segments import Segment

# In characters; it bounds the memory that an open quote takes.
MAX_FIELD = csv.field_size_limit()

_BOM = "\ufeff"


def csv_header(segment: Segment) -> list[str]:
    """Return the names in a file's header; `[]` for an empty file.

    Raises:
        InputError: as `read_csv`.
    """
    return next(_records(segment, text_lines(text_chunks(segment))), [])


def header_of(segment: Segment, lines: list[bytes]) -> list[str]:
    """Return the names in the header that these lines of a file start with; `[]` if they are blank."""
    return next(_records(segment, iter([lines])), [])


def read_csv(segment: Segment) -> Iterator[list[RawRow]]:
    """Yield the rows of a file in order, in batches of up to 256.

    Raises:
        InputError: `bad_csv`: its quotes do not pair up; otherwise as `text_chunks`.
    """
    return rows_of(segment, text_lines(text_chunks(segment)))


def rows_of(
    segment: Segment, blocks: Iterator[list[bytes]], header: Sequence[str] = (), row: int = 0, line: int = 0
) -> Iterator[list[RawRow]]:
    """Yield the rows of the last lines of a file.

    Args:
        blocks: the lines.
        header: the names, unless the lines start with them.
        row: number of the first row; `line`: of the lines before it.

    Raises:
        InputError: as `read_csv`.
    """
    records = _records(segment, blocks, line)
    names = header or next(records, [])
    numbered = enumerate((_row(names, fields) for fields in records), start=row)
    while batch := list(islice(numbered, BATCH_ROWS)):
        yield batch


def field_count(found: int, wanted: int) -> RowFault:
    """Return the fault of a row with another number of fields than the header."""
    return RowFault("field_count", f"the row has {found} fields, the header has {wanted}")


def _row(header: Sequence[str], fields: list[str]) -> dict[str, str | None] | RowFault:
    if len(fields) != len(header):
        return field_count(len(fields), len(header))
    row: dict[str, str | None] = dict(zip(header, fields, strict=True))
    return {name: field or None for name, field in row.items()} if "" in fields else row


def _records(segment: Segment, blocks: Iterator[list[bytes]], line: int = 0) -> Iterator[list[str]]:
    """Yield the fields of each row; `line` lines of the file are before them."""
    reader = csv.reader(_text(blocks, line == 0), strict=True)
    first = 0
    try:
        for fields in reader:
            first = reader.line_num
            if fields:
                yield fields
    except csv.Error as error:
        if "field limit" in str(error):
            why = (
                f"has a field of more than {MAX_FIELD:,} characters: close its quote or, if the field is really that "
                "long, remove its column from the file"
            )
        else:
            why = f"is not CSV: {error}; put fields with quotes or line breaks in quotes, and double quotes in them"
        raise InputError(
            f"the row that starts in line {line + first + 1} {why}",
            code="bad_csv",
            where=segment.name,
        ) from error


def _text(blocks: Iterator[list[bytes]], first: bool) -> Iterator[str]:
    for lines in blocks:
        for line in lines:
            if line == OVERLONG:
                raise csv.Error("the line is too long")
            text = line.decode(errors="backslashreplace") + "\n"
            yield text.removeprefix(_BOM) if first else text
            first = False
