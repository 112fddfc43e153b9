"""Read from the files' footers what is in them: rows, row groups, and whether the columns can be measurements.

Nothing is written before every file has been opened, and every unusable file is named.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from schemas.errors import InputError
from schemas.probes import INPUT_COLUMNS
from tasks.inputs.sizing import grouped, part_size
from tasks.probes.rows.reading import RowGroups
from tasks.run.identity import Identity, Source
from tasks.storage.parquet import PARQUET_ERRORS, open_parquet

_NAMED = 20
_PART_ROWS = 1 << 20
_PARTS = 96


@dataclass(frozen=True)
class SourceFile:
    """Describe one readable file and the rows of its row groups."""

    path: str
    name: str
    digest: str
    group_rows: tuple[int, ...]
    seen: tuple[int, ...] = ()


def take_inventory(identity: Identity[Source]) -> tuple[SourceFile, ...]:
    """Read the footer of every file.

    Raises:
        InputError: `bad_files`: files cannot be used, all of them named; `empty_input`: no file has rows.
    """
    [source] = identity.sources
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        looked = list(pool.map(_look, [file.path for file in source.files]))
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
        SourceFile(str(file.path), file.name, digest, found, tuple(identity.seen[str(file.path)]))
        for file, digest, found in zip(source.files, source.digests, looked, strict=True)
        if not isinstance(found, str)
    )
    if not any(sum(file.group_rows) for file in files):
        raise InputError("the input files have no rows", code="empty_input", where="input")
    return files


def _look(path: Path) -> tuple[int, ...] | str:
    """Return the rows of each row group, or what is wrong with the file."""
    try:
        with open_parquet(path) as file:
            fault = column_fault(file.schema_arrow)
            if fault is not None:
                return fault
            metadata = file.metadata
            rows = tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
            if sum(rows) != metadata.num_rows:
                return f"the footer promises {metadata.num_rows} rows, but its row groups have {sum(rows)}"
            return rows
    except PARQUET_ERRORS as error:
        return f"not a readable Parquet file: {error}"


def column_fault(schema: pa.Schema) -> str | None:
    """Return why a file with this schema cannot contain measurements, or `None`."""
    missing = [name for name in INPUT_COLUMNS if len(schema.get_all_field_indices(name)) != 1]
    if missing:
        known = ", ".join(schema.names[:10])
        return f"no single column {', '.join(missing)} (columns: {known})"
    for name, (allowed, fits) in _ALLOWED.items():
        kind = schema.field(name).type
        if not fits(kind):
            return f"column {name!r} is {kind}, not {allowed}"
    return None


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind))


_ALLOWED: dict[str, tuple[str, Callable[[pa.DataType], bool]]] = {
    "event_time": ("a timestamp", pa.types.is_timestamp),
    "src_addr": ("a string", _is_text),
    "dst_addr": ("a string", _is_text),
    "ip_version": ("an integer", pa.types.is_integer),
    "rtt": ("a number", _is_number),
}


def cut_parts(files: Sequence[SourceFile]) -> list[tuple[RowGroups, ...]]:
    """Cut the input, in order and at row-group edges, into parts of about a million rows, one for each scatter task.

    The size is the smallest 2**20 * 2**k such that 96 parts hold the input. A part contains several files only if
    they are small.
    """
    part_rows = part_size(sum(sum(file.group_rows) for file in files), _PART_ROWS, _PARTS)
    pieces = (piece for file in files for piece in _cut_file(file, part_rows))
    return grouped(pieces, lambda piece: piece.rows, part_rows)


def _cut_file(file: SourceFile, part_rows: int) -> list[RowGroups]:
    pieces: list[RowGroups] = []
    first_row = first_group = rows = 0

    def close(end: int) -> None:
        pieces.append(
            RowGroups(file.path, file.name, file.digest, first_group, end, first_row, rows, file.seen)
        )

    for group, group_rows in enumerate(file.group_rows):
        if rows and rows + group_rows > part_rows:
            close(group)
            first_row, first_group, rows = first_row + rows, group, 0
        rows += group_rows
    if rows:
        close(len(file.group_rows))
    return pieces
