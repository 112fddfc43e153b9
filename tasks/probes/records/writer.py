"""Write ArrayRecord files that appear whole or not at all.

With `group_size:1` a random read decodes one record, not a group of them. An ArrayRecord file that was not closed
reads as one of 0 records, without an error; so it is written under a temporary name, closed, opened again, counted,
and only then renamed. `process.py` does the compressing.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from schemas.errors import IntegrityError, MissingExtraError, StorageError, WorkError, remedy
from schemas.probes import RecordCompression
from tasks.storage.atomic import AtomicFile, storage_errors
from tasks.storage.reading import open_binary

_MODULE = "array_record.python.array_record_module"
_PROGRAM = Path(__file__).with_name("process.py")
# Bytes that may wait between the two processes.
_PIPE_BYTES = 1 << 20
# Of ArrayRecord's own pool, each with its stack and heap: with 1.4 GB of address space it waited for ever.
_THREADS, _STACK_BYTES = 64, 24 << 20


def array_record_module() -> Any:
    """Import the module of ArrayRecord readers and writers.

    Raises:
        MissingExtraError: array_record is not installed.
    """
    try:
        return importlib.import_module(_MODULE)
    except ModuleNotFoundError as error:
        raise MissingExtraError.of("array_record", "probes", "Reading and writing probe records") from error


def writer_options(compression: RecordCompression, level: int) -> str:
    """Return the options of an ArrayRecord writer.

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
    """Write an ArrayRecord file, through `process.py` in a process of its own.

    Args:
        path: final name of the file.
        options: see `writer_options`.

    Raises:
        MissingExtraError: array_record is not installed.
        StorageError: creating, writing, syncing or renaming failed.
        IntegrityError: `totals`: after closing, the file does not contain all records that were written.
    """

    def __init__(self, path: Path, options: str) -> None:
        array_record_module()
        super().__init__(path)
        self.records = 0
        try:
            with storage_errors(path, "start the writer of"):
                # -P: modules beside the program must not shadow the standard library.
                self._process = subprocess.Popen(
                    [sys.executable, "-P", _PROGRAM, self._temporary, options],
                    stdin=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    # Otherwise glibc keeps the memory of the largest record.
                    env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"},
                )
        except BaseException:
            super().discard()
            raise
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with contextlib.suppress(OSError):
                fcntl.fcntl(self._input(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def add(self, sizes: NDArray[np.int64], data: bytes | memoryview) -> None:
        """Append records.

        Args:
            sizes: int64[n], bytes of each record.
            data: the bytes of all records, one after the other.

        Raises:
            StorageError: the records cannot be written.
        """
        if len(sizes):
            self._send(np.concatenate([[len(sizes)], sizes]).astype("<i8").tobytes())
            self._send(data)
            self.records += len(sizes)

    def commit(self) -> None:
        """Close the file, count its records, hash it, and make it visible under its final name.

        Raises:
            StorageError: the file cannot be closed or renamed.
            IntegrityError: `totals`: the file does not contain all records that were written.
        """
        try:
            self._send(bytes(8))
            if self._finish():
                raise self._failed()
            found = count_records(self._temporary)
            if found != self.records:
                raise IntegrityError(
                    f"{self.records} records were written but the file contains {found}; check the free disk space",
                    code="totals",
                    where=str(self.path),
                )
            self.measure()
        except BaseException:
            self.discard()
            raise
        super().commit()

    def _input(self) -> int:
        return cast(IO[bytes], self._process.stdin).fileno()

    def _send(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        try:
            while view.nbytes:
                view = view[os.write(self._input(), view) :]
        except BrokenPipeError:
            self._finish()
            raise self._failed() from None

    def _finish(self) -> int:
        """Wait for the process to end; return its exit code."""
        self._said = self._process.communicate()[1].decode(errors="replace").strip()
        return self._process.returncode

    def _failed(self) -> StorageError:
        said = self._said.rpartition("\n")[2] or f"the writer ended with {self._process.returncode}"
        return StorageError(
            f"cannot write: {remedy(said, 'check free space and permissions of the output folder')}",
            where=str(self.path),
        )

    def discard(self) -> None:
        """End the process and remove the temporary file."""
        self._process.kill()
        with contextlib.suppress(OSError, ValueError):
            self._finish()
        super().discard()


@contextlib.contextmanager
def open_records(path: Path, options: str = "readahead_buffer_size:0,max_parallelism:0") -> Any:
    """Open a reader of a file, by default for random access.

    Raises:
        MissingExtraError: array_record is not installed.
        IntegrityError: `bad_arrayrecord`: the file cannot be opened.
        WorkError: `memory_limit`: the process may not take the memory for the reader's threads.
        StorageError: `limit`: the process may not open another file.
    """
    module = array_record_module()
    _check_memory()
    try:
        reader = module.ArrayRecordReader(str(path), options)
        # A file that cannot be opened raises nothing here.
        opened = bool(reader.ok())
    except (RuntimeError, ValueError):
        opened = False
    if not opened:
        # The reader does not say why; this does if no more files may be opened.
        with contextlib.suppress(OSError), open_binary(path):
            pass
        raise IntegrityError(
            "not a readable ArrayRecord file; it is missing, cut short or of another format",
            code="bad_arrayrecord",
            where=str(path),
        )
    try:
        yield reader
    finally:
        reader.close()


@functools.cache
def _check_memory() -> None:
    """Refuse what the first reader of a process waits for without end, or crashes on: memory for its threads."""
    try:
        # Mapped, and as nobody writes to it, never taken.
        del [np.empty(_STACK_BYTES, np.uint8) for _ in range(_THREADS)][:]
    except MemoryError as error:
        raise WorkError(
            f"reading ArrayRecord needs {_THREADS * _STACK_BYTES >> 20} MB of address space for its threads, and the "
            "system refuses them; raise the limit (ulimit -v, ulimit -d), then run again",
            code="memory_limit",
        ) from error


def count_records(path: Path) -> int:
    """Count the records in a file.

    Raises:
        IntegrityError: `bad_arrayrecord`: the file cannot be opened.
    """
    with open_records(path) as reader:
        return int(reader.num_records())
