"""Name the ranges of input files that are read: the pieces of `tasks.inputs.parts`, with what a reader needs.

Nothing is cut inside a line: JSONL is cut at bytes, Parquet at row groups, compressed JSONL between its frames or
members (`tasks.inputs.members`). The reader of a range of JSONL reads the lines that start in it: it skips up to the
first line start, and reads past the end of the range to the end of its last line.

Row numbers count physical lines (JSONL) or rows (Parquet) of the file from 0, so a segment carries the number of its
first row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from schemas.errors import ConfigError
from tasks.inputs.files import PATTERNS, InputFile
from tasks.inputs.parts import GROUP_BYTES, Cut, grouped

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

_FORMATS: tuple[Format, ...] = ("jsonl", "jsonl.gz", "jsonl.zst", "parquet")
_CUTTABLE: tuple[Format, ...] = ("jsonl", "jsonl.gz", "jsonl.zst", "parquet")


@dataclass(frozen=True)
class Segment:
    """A contiguous range of one input file.

    Attributes:
        path: absolute path of the file.
        name: the file's name in ledgers and rejects.
        format: from the file extension.
        start: jsonl, plain or compressed: byte; parquet: row group; others: 0.
        stop: byte or row group after the last; -1: the end of the file.
        first_row: number in the file of the first line that starts here (jsonl) or of the first row (parquet).
        bytes: stored size; parquet: the file's, shared by the groups' plain sizes.
        rows: how many lines or rows start here; -1: not counted.
        is_inside: whether it starts inside a line that is not part of it (compressed jsonl).
    """

    path: str
    name: str
    format: Format
    start: int
    stop: int
    first_row: int
    bytes: int
    rows: int = -1
    is_inside: bool = False


def whole_file(file: InputFile, kind: Format) -> Segment:
    """Return all of a file as one segment."""
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


def segments_of(file: InputFile, kind: Format, cuts: Sequence[Cut] = ()) -> list[Segment]:
    """Return the pieces of a file; all of it if it has none, or is of a format that is not cut."""
    if not cuts or kind not in _CUTTABLE:
        return [whole_file(file, kind)]
    return [
        Segment(
            path=str(file.path),
            name=file.name,
            format=kind,
            start=cut.start,
            stop=cut.stop,
            first_row=cut.first_row,
            bytes=cut.bytes,
            rows=cut.rows,
            is_inside=cut.is_inside,
        )
        for cut in cuts
    ]


def parts_of(
    files: Sequence[InputFile], cuts: Sequence[Sequence[Cut]], group_bytes: int = GROUP_BYTES
) -> list[tuple[Segment, ...]]:
    """Return the parts of a data set, see `tasks.inputs.parts`.

    Args:
        files: in order of their names.
        cuts: the pieces of each file.
        group_bytes: largest size of a group of small files.

    Raises:
        ConfigError: the extension of a file is not supported.
    """
    return grouped(
        (
            (file.name, file.bytes, segments_of(file, format_of(file.name), pieces))
            for file, pieces in zip(files, cuts, strict=True)
        ),
        group_bytes,
    )
