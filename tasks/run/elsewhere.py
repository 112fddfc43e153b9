"""Record a file of a stage that lies outside the output folder, in a small file in its place.

`{name}.elsewhere` is the JSON of a `FileRecord` whose path is absolute. It is an output of its task like any other,
with size and digest in the receipt; whoever checks it also checks the file it names. Nothing is written
through it, as would be through a symbolic link.
"""

from __future__ import annotations

from pathlib import Path

from schemas.errors import IntegrityError
from schemas.run import FileRecord
from tasks.storage.atomic import AtomicFile, storage_errors, write_file
from tasks.storage.names import remove_path
from tasks.storage.reading import read_bytes

SUFFIX = ".elsewhere"
# Beyond this, it is not a record: no path is longer than 4 KiB.
_MOST_BYTES = 1 << 16


def record_path_of(path: Path) -> Path:
    """Return where the record of a file is that would be at `path`."""
    return path.with_name(path.name + SUFFIX)


def write_elsewhere(path: Path, record: FileRecord) -> AtomicFile:
    """Record where the file that would be at `path` is; a file at `path` itself goes.

    Raises:
        StorageError: it cannot be written.
    """
    with storage_errors(path, "remove"):
        remove_path(path)
    return write_file(record_path_of(path), record.model_dump_json().encode() + b"\n")


def read_elsewhere(path: Path) -> FileRecord:
    """Read the record at `path`, whose name ends with `SUFFIX`.

    Raises:
        IntegrityError: `foreign_record`: this is not such a record.
        OSError: it cannot be read.
    """
    data = read_bytes(path, _MOST_BYTES)
    try:
        record = FileRecord.model_validate_json(data)
    except ValueError as error:
        raise _foreign(path, str(error).partition("\n")[0]) from None
    if not Path(record.path).is_absolute() or "\0" in record.path:
        raise _foreign(path, f"{record.path!r} is not an absolute path")
    return record


def _foreign(path: Path, why: str) -> IntegrityError:
    return IntegrityError(
        f"this file does not say where another one is: {why}; remove its stage and run again",
        code="foreign_record",
        where=str(path),
    )
