"""Open Parquet files for reading and writing, with one set of options and uniform errors.

Pages are written with checksums (CRC-32), which readers verify where a file has them; the footer has none. Column
chunks are read through a buffer, not prefetched, so a row group of any size takes the same memory.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.errors import InputError, remedy
from tasks.storage.atomic import AtomicFile
from tasks.storage.reading import LocalPath, open_binary, open_regular

BUFFER_BYTES = 1 << 20
# A name in a damaged footer may not be UTF-8.
PARQUET_ERRORS = (OSError, UnicodeDecodeError, pa.ArrowException)


@contextlib.contextmanager
def open_parquet(path: LocalPath, **options: Any) -> Iterator[pq.ParquetFile]:
    """Open a local Parquet file.

    Args:
        options: for `pyarrow.parquet.ParquetFile`, overriding those of this module.

    Raises:
        OSError, UnicodeDecodeError, pyarrow.ArrowException: `PARQUET_ERRORS`; see `parquet_faults`.
    """
    with open_binary(path) as source, parquet_file(source, **options) as file:
        yield file


def parquet_file(source: BinaryIO | LocalPath, **options: Any) -> pq.ParquetFile:
    """Open a Parquet file by path or from an open file; the caller closes both. Errors as `open_parquet`."""
    defaults = {"buffer_size": BUFFER_BYTES, "pre_buffer": False, "page_checksum_verification": True}
    return pq.ParquetFile(source, **(defaults | options))


def parquet_writer(sink: AtomicFile, schema: pa.Schema, **options: Any) -> pq.ParquetWriter:
    """Write to a file in Parquet, with checksums of pages; close this first, then commit the file.

    If this fails, the file is discarded.

    Args:
        options: for `pyarrow.parquet.ParquetWriter`.
    """
    try:
        return pq.ParquetWriter(pa.PythonFile(sink, mode="w"), schema, write_page_checksum=True, **options)
    except BaseException:
        sink.discard()
        raise


def discard_parquet(writer: pq.ParquetWriter | None, sink: AtomicFile) -> None:
    """Remove what `parquet_writer` wrote, whatever state an error has left it in."""
    if writer is not None:
        # Close it here, because its destructor would write to the removed file and fail.
        with contextlib.suppress(Exception):
            writer.close()
    sink.discard()


def parquet_rows(path: LocalPath) -> int:
    """Return the number of rows in a file's footer. Errors as `open_parquet`."""
    return int(parquet_footer(path).num_rows)


def parquet_footer(path: LocalPath) -> pq.FileMetaData:
    """Read the footer of a file. Errors as `open_parquet`."""
    with open_binary(path) as source:
        return pq.read_metadata(source)


def parquet_columns(path: LocalPath) -> list[str]:
    """Return the column names of a file. Errors as `open_parquet`."""
    with open_parquet(path) as file:
        return list(file.schema_arrow.names)


def read_table(path: LocalPath, columns: list[str] | None = None) -> pa.Table:
    """Read a whole small file. Errors as `open_parquet`."""
    with open_parquet(path) as file:
        return file.read(columns=columns)


def open_native(path: LocalPath) -> pa.NativeFile:
    """Open any file so that Arrow reads it without holding the interpreter's lock.

    Raises:
        OSError: it cannot be opened.
    """
    os.close(open_regular(path))
    return pa.OSFile(str(path))


@contextlib.contextmanager
def parquet_faults(where: str) -> Iterator[None]:
    """Turn the errors of reading a Parquet file into one readable error.

    Args:
        where: the file's name in errors.

    Raises:
        InputError: `unreadable`: the system refuses to open or read it; `bad_parquet`: it is damaged.
    """
    try:
        yield
    except PARQUET_ERRORS as error:
        raise parquet_fault(error, where) from error


def parquet_fault(error: Exception, where: str) -> InputError:
    """Convert one of `PARQUET_ERRORS` for `parquet_faults`."""
    # Arrow also raises OSError, without a number, for data it cannot decode.
    if isinstance(error, OSError) and error.errno is not None:
        return InputError(f"cannot be read: {remedy(error)}", code="unreadable", where=where)
    return InputError(
        f"the Parquet file is truncated or damaged ({error}); fetch or write it again",
        code="bad_parquet",
        where=where,
    )
