"""Read the rows of a segment, each with its number in the file, in batches of bounded memory.

A row that cannot be read is not lost: it becomes a `RowFault` under its own number. A file that cannot be
read stops the run with an `InputError`.

JSONL. Rows are physical lines counted from 0; blank lines count but are not rows. CRLF and a byte order mark
at the start of the file are accepted, and a last line without a newline is a row. Parsing is done by orjson, which
is strict: NaN and Infinity are `invalid_json`. Whole numbers beyond 64 bits become floats, as in every
reader whose numbers are doubles. The standard library then finds out why a line failed.
A line longer than `MAX_LINE_BYTES` is `line_too_long` and is skipped without being kept in memory.

CSV is read by csv_rows.py, an array of JSON objects by json_array.py.

Compressed text. A file that expands more than 250 times, beyond 64 MiB, is refused (`expands_too_far`), as it
would take hours. Consecutive gzip members or zstd frames form one text. Arrow's stream reports a
file that ends inside a member or frame; one cut exactly between two is indistinguishable from a complete file, and so
is a flipped byte in a zstd frame that was written without a checksum.

Parquet. Values become plain JSON (see arrow_values.py). Strings that are not UTF-8, which Arrow does not check,
are `invalid_utf8` for their row alone. A row that takes more than 64 MiB in memory is `row_too_large`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NoReturn

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.errors import InputError, remedy
from tasks.inputs.arrow_values import table_rows
from tasks.inputs.members import MOST_EXPANSION, SMALLEST_LIMIT
from tasks.inputs.segments import Segment
from tasks.storage.parquet import open_native, open_parquet, parquet_faults
from tasks.storage.parquet_batches import parquet_batches, parts
from tasks.storage.reading import open_binary

BATCH_ROWS = 256
# A batch is also full when its lines take this many bytes, so memory stays bounded.
BATCH_BYTES = 4 << 20
CHUNK_BYTES = 1 << 18
# So much at once is read past the end of a range to find the end of its last line.
_READ_ON_BYTES = 1 << 14
MAX_LINE_BYTES = 64 << 20

_BOM = b"\xef\xbb\xbf"
_CODECS = {"gz": "gzip", "zst": "zstd", "bz2": "bz2"}
_BLANK = object()
# Stands for a line that was skipped; no real line contains a newline.
OVERLONG = b"\n"
_NEWLINE = OVERLONG[0]
_SPACE = 32


@dataclass(frozen=True, slots=True)
class RowFault:
    """Why a row has no value: a reason for the ledger and a detail for people."""

    reason: str
    detail: str


RawRow = tuple[int, dict[str, Any] | RowFault]


def read_rows(segment: Segment, columns: Sequence[str] | None = None) -> Iterator[list[RawRow]]:
    """Yield the rows of `segment` in file order, in batches of up to 256.

    Args:
        segment: what to read.
        columns: columns to read from a Parquet file, if it has them; JSONL rows are read whole.

    Raises:
        InputError: `unreadable`, `truncated_input`, `expands_too_far`, `bad_gzip`, `bad_zstd`, `bad_bz2`,
            `bad_parquet` or `input_changed`, with the file's name.
    """
    if segment.format == "parquet":
        return _parquet_rows(segment, columns)
    lines = text_lines(text_chunks(segment))
    # Where plain text is cut is seen in it.
    if "." in segment.format and segment.stop >= 0:
        lines = _lines_of(segment, lines)
    return _parsed(lines, segment.first_row)


def _lines_of(segment: Segment, blocks: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
    """Yield the lines that start in a segment, of those from its first byte on.

    Raises:
        InputError: `input_changed`: there are fewer than were counted.
    """
    left = segment.rows
    is_inside = segment.is_inside
    for lines in blocks:
        own = lines[is_inside : left + is_inside]
        is_inside = False
        left -= len(own)
        if own:
            yield own
        if not left:
            return
    raise InputError(
        f"{left:,} lines are missing behind byte {segment.start:,}: this input changed since the run looked at it; "
        "run it again",
        code="input_changed",
        where=segment.path,
    )


def text_chunks(segment: Segment) -> Iterator[bytes]:
    """Yield the plain text of a segment in chunks.

    Raises:
        InputError: `unreadable`, `truncated_input`, `expands_too_far`, `bad_gzip`, `bad_zstd` or `bad_bz2`, with the
            file's name.
    """
    compressed = "." in segment.format
    return _decompressed_chunks(segment) if compressed else _file_chunks(segment)


def _file_chunks(segment: Segment) -> Iterator[bytes]:
    # A stop of -1 is the end of the file.
    stop = segment.stop if segment.stop >= 0 else segment.bytes
    try:
        with open_binary(segment.path, 0) as source:
            yield from _line_chunks(source, segment.start, stop)
    except OSError as error:
        _unreadable(segment, error)


def _line_chunks(source: BinaryIO, start: int, stop: int) -> Iterator[bytes]:
    """Yield the lines that start in these bytes: from the first of them to the end of the last.

    Whether a line starts at `start` is decided by the byte before it.
    """
    at = max(start - 1, 0)
    source.seek(at)
    is_skipping = start > 0
    while chunk := source.read(min(CHUNK_BYTES, max(stop - at, _READ_ON_BYTES))):
        if is_skipping:
            newline = chunk.find(b"\n", 0, max(stop - 1 - at, 0))
            if newline < 0:
                at += len(chunk)
                if at >= stop - 1:
                    return
                continue
            is_skipping = False
            at += newline + 1
            chunk = chunk[newline + 1 :]
        # The last line ends with the first newline at or after the last byte.
        end = chunk.find(b"\n", max(stop - 1 - at, 0))
        at += len(chunk)
        if end >= 0:
            chunk = chunk[: end + 1]
        if chunk:
            yield chunk
        if end >= 0:
            return


def _decompressed_chunks(segment: Segment) -> Iterator[bytes]:
    codec = _CODECS[segment.format.rpartition(".")[2]]
    try:
        source = open_native(segment.path)
    except OSError as error:
        _unreadable(segment, error)
    with source:
        try:
            if source.size() == 0:
                _truncated(segment, "the file is empty, which compressed text never is")
            source.seek(segment.start)
            held = 0
            with pa.CompressedInputStream(source, codec) as stream:
                while chunk := stream.read(CHUNK_BYTES):
                    # The end of a segment's last line may be far behind its last byte.
                    if source.tell() <= segment.start + segment.bytes:
                        held += len(chunk)
                    if held > max(SMALLEST_LIMIT, MOST_EXPANSION * segment.bytes):
                        _expands_too_far(segment, held)
                    yield chunk
        except OSError as error:
            if error.errno is not None:
                _unreadable(segment, error)
            # Arrow uses one exception for both cases; a test pins this text.
            if "Truncated" in str(error):
                _truncated(segment, "the compressed text ends too early")
            raise InputError(
                f"the compressed text is damaged ({error}); fetch or compress the file again",
                code=f"bad_{codec}",
                where=segment.path,
            ) from error


def text_lines(chunks: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Yield the lines that end in each chunk, without their newline; `OVERLONG` for one that is too long."""
    pieces: list[bytes] = []
    held = 0
    for chunk in chunks:
        # Splitting 256 KiB of newlines takes ten times as long.
        is_blank = chunk[0] == chunk[-1] == _NEWLINE and chunk.count(b"\n") == len(chunk)
        lines = [b""] * (len(chunk) + 1) if is_blank else chunk.split(b"\n")
        # Past the limit, count a line's bytes without keeping them: memory stays bounded whatever its length.
        if held <= MAX_LINE_BYTES:
            pieces.append(lines[0])
        held += len(lines[0])
        if len(lines) == 1:
            continue
        lines[0] = b"".join(pieces) if held <= MAX_LINE_BYTES else OVERLONG
        pieces = [lines.pop()]
        held = len(pieces[0])
        yield lines
    if held:
        yield [b"".join(pieces) if held <= MAX_LINE_BYTES else OVERLONG]


def _parsed(blocks: Iterator[list[bytes]], row: int) -> Iterator[list[RawRow]]:
    loads = orjson.loads
    batch: list[RawRow] = []
    batch_bytes = 0
    for lines in blocks:
        if not any(lines):
            # Skipped together: a file may have billions.
            row += len(lines)
            continue
        for line in lines:
            # A blank line takes a number but is not a row.
            if line and (line[0] > _SPACE or line is OVERLONG or not line.isspace()):
                try:
                    value = loads(line)
                except orjson.JSONDecodeError as error:
                    value = _diagnose(line, row, error)
                if type(value) is dict:
                    batch.append((row, value))
                elif value is not _BLANK:
                    batch.append((row, value if type(value) is RowFault else _not_an_object(value)))
                if len(batch) == BATCH_ROWS:
                    yield batch
                    batch, batch_bytes = [], 0
            row += 1
        batch_bytes += sum(map(len, lines))
        if batch and batch_bytes >= BATCH_BYTES:
            yield batch
            batch, batch_bytes = [], 0
    if batch:
        yield batch


def _diagnose(line: bytes, row: int, error: orjson.JSONDecodeError) -> Any:
    """Classify a line that orjson refused: a value, blank, or a fault with its reason."""
    if line == OVERLONG:
        return RowFault("line_too_long", f"the line is longer than {MAX_LINE_BYTES >> 20} MiB")
    if row == 0 and line.startswith(_BOM):
        line = line.removeprefix(_BOM)
        try:
            return orjson.loads(line)
        except orjson.JSONDecodeError as second:
            error = second
    if not line.strip():
        return _BLANK
    try:
        text = line.decode()
    except UnicodeDecodeError as fault:
        byte = line[fault.start]
        return RowFault(
            "invalid_utf8", f"byte 0x{byte:02x} at byte {fault.start} of the line: {fault.reason}"
        )
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_int=str)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return RowFault("lone_surrogate", "an escape such as \\ud800 is half of a UTF-16 pair")
    except RecursionError:
        return RowFault("invalid_json", "nested too deeply")
    except ValueError as fault:
        return RowFault("invalid_json", str(fault))
    return RowFault("invalid_json", str(error))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _not_an_object(value: Any) -> RowFault:
    kind = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}.get(
        type(value), "a number"
    )
    return RowFault("not_an_object", f"the line is {kind}, not an object")


def _parquet_rows(segment: Segment, columns: Sequence[str] | None) -> Iterator[list[RawRow]]:
    row = segment.first_row
    with parquet_faults(segment.path), open_parquet(segment.path, buffer_size=CHUNK_BYTES) as file:
        names = file.schema_arrow.names
        _check_footer(file.metadata, segment)
        stop = segment.stop if segment.stop >= 0 else file.metadata.num_row_groups
        groups = range(segment.start, stop)
        end = row + sum(file.metadata.row_group(i).num_rows for i in groups)
        wanted = None if columns is None else [name for name in columns if name in names]
        for batch in parquet_batches(file, groups, wanted, BATCH_ROWS):
            for part, size in parts(batch):
                values = _batch_values(part) if size <= MAX_LINE_BYTES else [_too_large(size)]
                yield [(row + i, value) for i, value in enumerate(values)]
                row += part.num_rows
        if row != end:
            raise pa.ArrowInvalid(f"{end - row} rows listed in the footer are missing from the pages")


def _check_footer(metadata: pq.FileMetaData, segment: Segment) -> None:
    rows = sum(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
    if rows != metadata.num_rows:
        raise InputError(
            f"the Parquet footer declares {metadata.num_rows} rows but lists {rows}; it is damaged",
            code="bad_parquet",
            where=segment.path,
        )


def _too_large(size: int) -> RowFault:
    limit = f"a row may take {MAX_LINE_BYTES >> 20} MiB, and 64 bytes for each element of a list count"
    return RowFault("row_too_large", f"the row takes {size:,} bytes; {limit}")


def _batch_values(batch: pa.RecordBatch) -> list[dict[str, Any] | RowFault]:
    try:
        return [*table_rows(batch)]
    except UnicodeDecodeError as error:
        if batch.num_rows == 1:
            return [
                RowFault("invalid_utf8", f"a string column holds bytes that are not UTF-8: {error.reason}")
            ]
    return [value for i in range(batch.num_rows) for value in _batch_values(batch.slice(i, 1))]


def _unreadable(segment: Segment, error: OSError) -> NoReturn:
    raise InputError(f"cannot be read: {remedy(error)}", code="unreadable", where=segment.path) from error


def _expands_too_far(segment: Segment, held: int) -> NoReturn:
    raise InputError(
        f"the file has {segment.bytes:,} bytes, its text more than {held:,}, over {MOST_EXPANSION} times that. Is "
        "it a decompression bomb? If its rows are really so repetitive, give it uncompressed",
        code="expands_too_far",
        where=segment.path,
    )


def _truncated(segment: Segment, what: str) -> NoReturn:
    raise InputError(f"{what}; fetch the file again", code="truncated_input", where=segment.path)
