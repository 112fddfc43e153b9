"""Cut input files into parts of bounded size, as a pure function of the inputs.

Parts are the unit of work, of caching and of restart, so they must not depend on the number of workers: the
same files give the same parts on every machine. Nothing is cut inside a line, and only what can be cut
without decoding is cut: plain JSONL at line ends, Parquet at row groups. A compressed JSONL file is one
segment. A JSONL segment exceeds the requested size by at most one line, a Parquet segment only if one row
group does.

Row numbers count physical lines (JSONL) or rows (Parquet) of the file from 0, so a segment carries the
number of its first row; that takes one pass over a big JSONL file (`bytes.count`, 2.7 GB/s from the page
cache; fingerprinting reads the file anyway).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from schemas.errors import ConfigError, InputError, remedy
from tasks.inputs.files import PATTERNS, InputFile
from tasks.inputs.sizing import grouped, part_size
from tasks.storage.reading import open_binary

# "json" is one array of objects, "csv" has a header; only the flows that take them ask for them.
Format = Literal[
    "parquet",
    "jsonl",
    "jsonl.gz",
    "jsonl.zst",
    "jsonl.bz2",
    "json",
    "json.gz",
    "json.zst",
    "json.bz2",
    "csv",
    "csv.gz",
    "csv.zst",
    "csv.bz2",
]

MAX_PARTS = 128
_SMALLEST_PART_BYTES = 4 << 20
_CHUNK_BYTES = 1 << 20
_FORMATS: tuple[Format, ...] = ("jsonl", "jsonl.gz", "jsonl.zst", "parquet")


@dataclass(frozen=True)
class Segment:
    """A contiguous range of one input file.

    Attributes:
        path: absolute path of the file.
        name: the file's name in ledgers and rejects.
        format: from the file extension.
        start: jsonl: first byte, a line start; parquet: first row group; others: 0.
        stop: jsonl: byte after the last; parquet: row group after the last; others: -1, the end.
        first_row: number in the file of the segment's first line (jsonl) or row (parquet).
        bytes: stored size, which `group` adds up; parquet: the file's, shared by the groups' plain sizes.
    """

    path: str
    name: str
    format: Format
    start: int
    stop: int
    first_row: int
    bytes: int


def whole_file(file: InputFile, kind: Format) -> Segment:
    """Return all of a text file as one segment."""
    return Segment(str(file.path), file.name, kind, 0, -1, 0, file.bytes)


def format_of(name: str) -> Format:
    """Return the format that a file name implies.

    Raises:
        ConfigError: the extension is not supported.

    >>> format_of("a/b.jsonl.zst")
    'jsonl.zst'
    """
    for known in _FORMATS:
        if name.endswith(f".{known}"):
            return known
    endings = ", ".join(pattern.removeprefix("*") for pattern in PATTERNS)
    raise ConfigError(
        f"this file type is not supported; supported: {endings}", code="unsupported_file", where=name
    )


def part_bytes_for(total_bytes: int) -> int:
    """Return the part size for a data set: the smallest 4 MiB * 2**k so that 128 parts hold `total_bytes`.

    >>> part_bytes_for(0) >> 20, part_bytes_for(512 << 20) >> 20, part_bytes_for((512 << 20) + 1) >> 20
    (4, 4, 8)
    """
    return part_size(total_bytes, _SMALLEST_PART_BYTES, MAX_PARTS)


def cut(files: Sequence[InputFile], part_bytes: int) -> list[Segment]:
    """Cut `files`, in their order, into segments of about `part_bytes` or less.

    A file of up to `part_bytes` is one segment and, unless it is Parquet, is not opened. An empty file has
    a segment too: its reader decides whether it may be empty.

    Raises:
        InputError: `bad_parquet`: a Parquet footer is missing or broken; `unreadable`: a file cannot be
            read.
    """
    if part_bytes < 1:
        raise ValueError(f"part_bytes must be positive, got {part_bytes}")
    return [segment for file in files for segment in _cut_file(file, part_bytes)]


def group(segments: Sequence[Segment], part_bytes: int) -> list[tuple[Segment, ...]]:
    """Join consecutive segments into parts of up to `part_bytes`; a longer segment is a part of its own."""
    return grouped(segments, lambda segment: segment.bytes, part_bytes)


def _cut_file(file: InputFile, part_bytes: int) -> Iterator[Segment]:
    kind = format_of(file.name)
    if kind == "parquet":
        yield from _cut_parquet(file, part_bytes)
    else:
        yield from cut_text(file, kind, part_bytes)


def cut_text(file: InputFile, kind: Format, part_bytes: int) -> Iterator[Segment]:
    """Cut a text file of this format into segments of about `part_bytes` or less; only plain JSONL can be cut.

    Raises:
        InputError: `unreadable`: the file cannot be read.
    """
    if kind != "jsonl":
        yield whole_file(file, kind)
    elif file.bytes <= part_bytes:
        yield Segment(str(file.path), file.name, kind, 0, file.bytes, 0, file.bytes)
    else:
        yield from _cut_jsonl(file, part_bytes)


def _cut_jsonl(file: InputFile, part_bytes: int) -> Iterator[Segment]:
    """Cut into equal sizes, moving each cut to the next line start."""
    pieces = math.ceil(file.bytes / part_bytes)
    targets = [file.bytes * piece // pieces for piece in range(1, pieces)]
    start = first_row = 0
    for stop, row in (*_line_starts(file, targets), (file.bytes, 0)):
        yield Segment(str(file.path), file.name, "jsonl", start, stop, first_row, stop - start)
        start, first_row = stop, row


def _line_starts(file: InputFile, targets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Find the first line start at or after each target, with its row; each once, none at the end."""
    offset = rows = 0
    pending = iter(targets)
    # A line starts at the target if the byte before it is a newline.
    wanted = next(pending, None)
    try:
        with open_binary(file.path, 0) as source:
            while wanted is not None and (chunk := source.read(_CHUNK_BYTES)):
                counted = 0
                while wanted is not None:
                    newline = chunk.find(b"\n", max(counted, wanted - 1 - offset))
                    if newline < 0 or offset + newline + 1 >= file.bytes:
                        break
                    rows += chunk.count(b"\n", counted, newline + 1)
                    counted = newline + 1
                    yield offset + counted, rows
                    while wanted is not None and wanted <= offset + counted:
                        wanted = next(pending, None)
                rows += chunk.count(b"\n", counted)
                offset += len(chunk)
    except OSError as error:
        raise _unreadable(file, error) from error


def _cut_parquet(file: InputFile, part_bytes: int) -> Iterator[Segment]:
    start = first_row = rows = size = index = 0
    for index, (group_rows, group_bytes) in enumerate(_row_groups(file), start=1):
        if index - 1 > start and size + group_bytes > part_bytes:
            yield Segment(str(file.path), file.name, "parquet", start, index - 1, first_row, size)
            start, first_row, size = index - 1, rows, 0
        rows += group_rows
        size += group_bytes
    yield Segment(str(file.path), file.name, "parquet", start, index, first_row, size)


def _row_groups(file: InputFile) -> list[tuple[int, int]]:
    """Return rows and stored bytes of each row group; the latter is the group's share of the file.

    The exact figure is in the metadata of its column chunks, but reading those aborts the process
    (pyarrow 26, an uncaught C++ exception) when the footer is damaged there.
    """
    from tasks.storage.parquet import parquet_faults, parquet_footer

    with parquet_faults(str(file.path)):
        metadata = parquet_footer(file.path)
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    rows = sum(group.num_rows for group in groups)
    if rows != metadata.num_rows:
        raise InputError(
            f"the Parquet footer declares {metadata.num_rows} rows but lists {rows}; it is damaged",
            code="bad_parquet",
            where=str(file.path),
        )
    total = sum(group.total_byte_size for group in groups) or 1
    ends = [file.bytes * done // total for done in accumulate(group.total_byte_size for group in groups)]
    return [
        (group.num_rows, end - start) for group, start, end in zip(groups, [0, *ends], ends, strict=False)
    ]


def _unreadable(file: InputFile, error: OSError) -> InputError:
    return InputError(f"cannot be read: {remedy(error)}", code="unreadable", where=str(file.path))
