"""Look into the files before anything is written: how many rows they have, and whether they can be measurements.

Of a Parquet file the footer is read, of a text file the first rows. Every unusable file is named.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.errors import InputError
from schemas.probes import INPUT_COLUMNS, BuildProbeRowsConfig, MeasurementFormat
from tasks.inputs.columns import is_text
from tasks.inputs.csv_rows import csv_header
from tasks.inputs.files import InputFile
from tasks.inputs.json_array import is_array
from tasks.inputs.parts import Cut, grouped
from tasks.inputs.segments import Segment, segments_of, whole_file
from tasks.probes.identity import format_of, text_format
from tasks.probes.rows.pieces import Piece, Reading, RowGroups, TextSegment
from tasks.probes.rows.reading import read_raw
from tasks.probes.rows.values import is_number, looks_like_number, texts_of
from tasks.run.identity import Identity, Source
from tasks.storage.parquet import PARQUET_ERRORS, open_parquet
from tasks.storage.threads import map_threads

_NAMED = 20
# Text of about one row.
_ROW_BYTES = 100
_FIRST_ROWS = 256


@dataclass(frozen=True)
class SourceFile:
    """Describe one readable file.

    Attributes:
        bytes: its size.
        cuts: its pieces.
        group_rows: of a Parquet file, the rows of its row groups.
        text: of a text file, all of it.
    """

    path: str
    name: str
    digest: str
    bytes: int
    cuts: tuple[Cut, ...]
    group_rows: tuple[int, ...]
    seen: tuple[int, ...] = ()
    text: TextSegment | None = None

    @property
    def rows(self) -> int:
        """How many rows it has; of a text file, about."""
        return sum(self.group_rows) if self.text is None else self.text.rows


def take_inventory(config: BuildProbeRowsConfig, identity: Identity[Source]) -> tuple[SourceFile, ...]:
    """Look into every file.

    Raises:
        InputError: `bad_files`: files cannot be used, all of them named; `empty_input`: no file has rows.
    """
    [source] = identity.sources
    looked = map_threads(lambda file: _look(file, config), source.files, min(8, os.cpu_count() or 1))
    faults = [
        f"{file.name}: {found}"
        for file, found in zip(source.files, looked, strict=True)
        if isinstance(found, str)
    ]
    if faults:
        more = f"; and {len(faults) - _NAMED} more" if len(faults) > _NAMED else ""
        raise InputError(
            f"{len(faults)} files cannot be used: {'; '.join(faults[:_NAMED])}{more}. Fix or remove them",
            code="bad_files",
            where="input",
        )
    files = tuple(
        _source_file(config, file, digest, cuts, found, tuple(identity.seen[str(file.path)]))
        for file, digest, cuts, found in zip(source.files, source.digests, source.cuts, looked, strict=True)
        if not isinstance(found, str)
    )
    if not any(file.rows for file in files):
        raise InputError("the input files have no rows", code="empty_input", where="input")
    return files


def _source_file(
    config: BuildProbeRowsConfig,
    file: InputFile,
    digest: str,
    cuts: tuple[Cut, ...],
    found: tuple[int, ...] | Segment,
    seen: tuple[int, ...],
) -> SourceFile:
    if not isinstance(found, Segment):
        return SourceFile(str(file.path), file.name, digest, file.bytes, cuts, found, seen)
    rows = -(-file.bytes // _ROW_BYTES)
    text = TextSegment(found, digest, format_of(file.path.name, config.format), rows, seen)
    return SourceFile(str(file.path), file.name, digest, file.bytes, cuts, (), seen, text)


def _look(file: InputFile, config: BuildProbeRowsConfig) -> tuple[int, ...] | Segment | str:
    """Return the rows of each row group, or the segment of a whole text file, or what is wrong with the file."""
    kind = format_of(file.path.name, config.format)
    if kind is MeasurementFormat.PARQUET:
        return _look_parquet(file.path, Reading.of(config))
    try:
        return _look_text(file, kind, Reading.of(config))
    except InputError as error:
        return error.message


def _look_parquet(path: Path, reading: Reading) -> tuple[int, ...] | str:
    try:
        with open_parquet(path) as file:
            fault = column_fault(file.schema_arrow, reading) or _text_fault(file, reading)
            if fault is not None:
                return fault
            metadata = file.metadata
            rows = tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
            if sum(rows) != metadata.num_rows:
                return f"the footer promises {metadata.num_rows} rows, but its row groups have {sum(rows)}"
            return rows
    except PARQUET_ERRORS as error:
        return f"not a readable Parquet file: {error}"


def _text_fault(file: pq.ParquetFile, reading: Reading) -> str | None:
    """Return why times that are text cannot be read, judged by the first of them."""
    column = reading.columns[INPUT_COLUMNS.index("event_time")] or ""
    if reading.time_unit is not None or not is_text(file.schema_arrow.field(column).type):
        return None
    first = next(file.iter_batches(_FIRST_ROWS, columns=[column], use_threads=False), None)
    if first is None:
        return None
    return _time_fault([{column: text} for text in texts_of(first.column(0))], reading)


def _look_text(file: InputFile, kind: MeasurementFormat, reading: Reading) -> Segment | str:
    segment = whole_file(file, text_format(file.path.name, kind))
    if kind is MeasurementFormat.ATLAS and is_array(segment):
        segment = whole_file(file, text_format(file.path.name, kind, True))
    first = [value for _, value in next(read_raw(segment), []) if isinstance(value, dict)]
    if kind is MeasurementFormat.ATLAS:
        fault = None if not first or any("prb_id" in row for row in first) else "no RIPE Atlas results"
    elif any({"prb_id", "msm_id"} <= row.keys() for row in first):
        fault = "these are RIPE Atlas results; set format to atlas"
    elif kind is MeasurementFormat.CSV:
        names = csv_header(segment)
        fault = (_names_fault(names, reading) if names else None) or _time_fault(first, reading)
    else:
        fault = _objects_fault(segment, reading)
    return segment if fault is None else fault


def _objects_fault(segment: Segment, reading: Reading) -> str | None:
    """Return why objects cannot be measurements: none of them has a column, or a time is a number without a unit.

    A row may leave out what it does not know, so this reads on until each column has been seen.
    """
    names: dict[str, None] = {}
    missing = None
    for batch in read_raw(segment):
        rows = [value for _, value in batch if isinstance(value, dict)]
        names |= dict.fromkeys(key for row in rows for key in row)
        missing = _names_fault([*names], reading) if names else None
        fault = _time_fault(rows, reading)
        if fault is not None or (names and missing is None):
            return fault
    return missing


def column_fault(schema: pa.Schema, reading: Reading) -> str | None:
    """Return why a file with this schema cannot contain measurements, or `None`."""
    fault = _names_fault(schema.names, reading)
    if fault is not None:
        return fault
    for name, theirs in zip(INPUT_COLUMNS, reading.columns, strict=True):
        allowed, fits = _ALLOWED[name]
        if theirs is None or theirs not in schema.names:
            continue
        kind = schema.field(theirs).type
        if name == "event_time" and is_number(kind):
            if reading.time_unit is None:
                return _unit_missing(theirs, str(kind))
        elif not fits(kind):
            return f"column {theirs!r} is {kind}, not {allowed}"
    return None


def _names_fault(names: Sequence[str], reading: Reading) -> str | None:
    missing = [
        theirs
        for theirs in reading.columns
        if theirs is not None
        and names.count(theirs) != 1
        and not (reading.may_lack(theirs) and theirs not in names)
    ]
    if not missing:
        return None
    known = ", ".join(names[:10])
    return f"no single column {', '.join(missing)} (columns: {known}); name theirs under columns"


def _time_fault(rows: Sequence[dict[str, Any]], reading: Reading) -> str | None:
    column = reading.columns[INPUT_COLUMNS.index("event_time")] or ""
    first = next((row[column] for row in rows if row.get(column) is not None), None)
    if reading.time_unit is None and looks_like_number(first):
        return _unit_missing(column, f"a number ({first})")
    return None


def _unit_missing(column: str, kind: str) -> str:
    return f"column {column!r} is {kind}, not a timestamp; set event_time_unit to s, ms, us or ns"


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind)) or is_text(kind)


def _is_number_or_text(kind: pa.DataType) -> bool:
    return is_number(kind) or is_text(kind)


def _is_version(kind: pa.DataType) -> bool:
    # A writer that knew no version may have given the column no type.
    return bool(pa.types.is_null(kind)) or _is_number_or_text(kind)


_ALLOWED: dict[str, tuple[str, Callable[[pa.DataType], bool]]] = {
    "event_time": ("a timestamp, text or a number", _is_time),
    "src_addr": ("a string", is_text),
    "dst_addr": ("a string", is_text),
    "ip_version": ("a number or text", _is_version),
    "rtt": ("a number or text", _is_number_or_text),
}


def cut_parts(files: Sequence[SourceFile]) -> list[tuple[Piece, ...]]:
    """Cut the input, in order, into parts, one for each scatter task; see `tasks.inputs.parts`."""
    return grouped(
        (file.name, file.bytes, _cut_file(file) if file.text is None else _cut_text(file, file.text))
        for file in files
    )


def _cut_file(file: SourceFile) -> list[Piece]:
    rows = sum(file.group_rows)
    cuts = file.cuts or (Cut(0, len(file.group_rows), 0, rows, file.bytes),)
    return [
        RowGroups(file.path, file.name, file.digest, cut.start, cut.stop, cut.first_row, cut.rows, file.seen)
        for cut in cuts
        if cut.rows
    ]


def _cut_text(file: SourceFile, text: TextSegment) -> list[Piece]:
    whole = text.segment
    return [
        TextSegment(segment, file.digest, text.format, -(-segment.bytes // _ROW_BYTES), file.seen)
        for segment in segments_of(
            InputFile(Path(whole.path), whole.name, whole.bytes), whole.format, file.cuts
        )
    ]
