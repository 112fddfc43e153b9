"""Parquet files opened for reading, with one set of options and one account of what went wrong.

Checksums of pages are verified where a file has them. Column chunks are read through a buffer and not ahead, so a row
group of any size takes the same memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.errors import InputError
from tasks.storage.reading import LocalPath, open_binary

BUFFER_BYTES = 1 << 20
# A name in a damaged footer may not be UTF-8.
PARQUET_ERRORS = (OSError, UnicodeDecodeError, pa.ArrowException)


@contextmanager
def open_parquet(path: LocalPath, **options: Any) -> Iterator[pq.ParquetFile]:
    """A local Parquet file.

    Args:
        options: of `pyarrow.parquet.ParquetFile`, over the ones of this module.

    Raises:
        OSError, UnicodeDecodeError, pyarrow.ArrowException: `PARQUET_ERRORS`; see `parquet_faults`.
    """
    with open_binary(path) as source, parquet_file(source, **options) as file:
        yield file


def parquet_file(source: BinaryIO | LocalPath, **options: Any) -> pq.ParquetFile:
    """A Parquet file by its path or as an open file; the caller closes both. Errors as `open_parquet`."""
    defaults = {"buffer_size": BUFFER_BYTES, "pre_buffer": False, "page_checksum_verification": True}
    return pq.ParquetFile(source, **(defaults | options))


def parquet_rows(path: LocalPath) -> int:
    """How many rows a file's footer promises. Errors as `open_parquet`."""
    return int(parquet_footer(path).num_rows)


def parquet_footer(path: LocalPath) -> pq.FileMetaData:
    """The footer of a file. Errors as `open_parquet`."""
    with open_binary(path) as source:
        return pq.read_metadata(source)


def parquet_columns(path: LocalPath) -> list[str]:
    """The names of a file's columns. Errors as `open_parquet`."""
    with open_parquet(path) as file:
        return list(file.schema_arrow.names)


def read_table(path: LocalPath, columns: list[str] | None = None) -> pa.Table:
    """A whole small file. Errors as `open_parquet`."""
    with open_parquet(path) as file:
        return file.read(columns=columns)


def open_native(path: LocalPath) -> pa.NativeFile:
    """A file of any kind that Arrow reads by itself, without the interpreter's lock.

    Raises:
        OSError: it cannot be opened.
    """
    return pa.OSFile(str(path))


@contextmanager
def parquet_faults(where: str) -> Iterator[None]:
    """Turn what reading a Parquet file raises into one readable error.

    Args:
        where: what errors call the file.

    Raises:
        InputError: `unreadable`: the system refuses to open or read it; `bad_parquet`: it is damaged.
    """
    try:
        yield
    except PARQUET_ERRORS as error:
        raise parquet_fault(error, where) from error


def parquet_fault(error: Exception, where: str) -> InputError:
    """What `parquet_faults` makes of one of `PARQUET_ERRORS`."""
    # Arrow raises OSError too, without a number, for what it cannot decode.
    if isinstance(error, OSError) and error.errno is not None:
        return InputError(f"cannot be read: {error.strerror or error}", code="unreadable", where=where)
    return InputError(
        f"the Parquet file is truncated or damaged ({error}); fetch or write it again",
        code="bad_parquet",
        where=where,
    )
