"""Writing ArrayRecord files that appear whole or not at all.

`group_size:1`: a reader at random decodes one record, not a group of them. An ArrayRecord file that was not closed
reads as one of 0 records, without an error; so it is written under a temporary name, closed, opened again, counted,
and only then renamed.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
from pathlib import Path
from typing import Any

from schemas.errors import IntegrityError, MissingExtraError, StorageError
from schemas.probes import RecordCompression
from tasks.store.atomic import AtomicFile

_MODULE = "array_record.python.array_record_module"


def array_record_module() -> Any:
    """The package's module of readers and writers.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        return importlib.import_module(_MODULE)
    except ModuleNotFoundError as error:
        raise MissingExtraError.of("array_record", "probes", "Reading and writing probe records") from error


def writer_options(compression: RecordCompression, level: int) -> str:
    """Options of an ArrayRecord writer.

    >>> writer_options(RecordCompression.ZSTD, 1), writer_options(RecordCompression.NONE, 1)
    ('group_size:1,zstd:1', 'group_size:1,uncompressed')
    """
    codec = {
        RecordCompression.ZSTD: f"zstd:{level}",
        RecordCompression.SNAPPY: "snappy",
        RecordCompression.NONE: "uncompressed",
    }[compression]
    return f"group_size:1,{codec}"


class ShardWriter(AtomicFile):
    """An ArrayRecord file being written.

    Args:
        path: its final name.
        options: see `writer_options`.

    Raises:
        StorageError: creating, writing, syncing or renaming failed.
        IntegrityError: `totals`: after closing, the file does not hold what was written.
    """

    def __init__(self, path: Path, options: str) -> None:
        module = array_record_module()
        super().__init__(path)
        self.records = 0
        self._writer: Any = None
        try:
            with self._storage_errors():
                self._writer = module.ArrayRecordWriter(str(self._temporary), options)
        except BaseException:
            self._discard()
            raise

    def add(self, record: bytes) -> None:
        """Append one record."""
        with self._storage_errors():
            self._writer.write(record)
        self.records += 1

    def commit(self) -> None:
        """Close the file, count its records, hash it, and make it visible under its final name."""
        with self._storage_errors():
            self._writer.close()
        found = count_records(self._temporary)
        if found != self.records:
            raise IntegrityError(
                f"{self.records} records were written and {found} are in the file; check space on the disk",
                code="totals",
                where=str(self.path),
            )
        with self._temporary.open("rb") as file:
            self._sha256 = hashlib.file_digest(file, "sha256")
            self.bytes = file.tell()
        super().commit()

    def _discard(self) -> None:
        with contextlib.suppress(Exception):
            if self._writer is not None and self._writer.is_open():
                self._writer.close()
        super()._discard()

    @contextlib.contextmanager
    def _storage_errors(self) -> Any:
        try:
            yield
        except (RuntimeError, ValueError) as error:  # what the package raises for any status that is not OK
            raise StorageError(
                f"cannot write: {error}; check space and permissions of the output folder",
                where=str(self.path),
            ) from error


@contextlib.contextmanager
def open_records(path: Path, options: str = "readahead_buffer_size:0,max_parallelism:0") -> Any:
    """A reader of the file, by default for random access.

    Raises:
        MissingExtraError: the package is not installed.
        IntegrityError: `bad_arrayrecord`: the file cannot be opened.
    """
    module = array_record_module()
    try:
        reader = module.ArrayRecordReader(str(path), options)
        # A file that cannot be opened raises nothing here.
        opened = bool(reader.ok())
    except (RuntimeError, ValueError):
        opened = False
    if not opened:
        raise IntegrityError(
            "not a readable ArrayRecord file; it is missing, torn or something else",
            code="bad_arrayrecord",
            where=str(path),
        )
    try:
        yield reader
    finally:
        reader.close()


def count_records(path: Path) -> int:
    """The number of records in a file.

    Raises:
        IntegrityError: `bad_arrayrecord`: the file cannot be opened.
    """
    with open_records(path) as reader:
        return int(reader.num_records())
