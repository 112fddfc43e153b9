"""Read local files: whole, opened, mapped, or by ranges. For Parquet see `tasks.storage.parquet`."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

LocalPath = str | os.PathLike[str]


def open_binary(path: LocalPath, buffering: int = -1) -> BinaryIO:
    """Open a file for reading.

    Args:
        buffering: bytes to read ahead; 0 for none, -1 for Python's default.
    """
    return open(path, "rb", buffering)  # noqa: PTH123 - `path` may be a string


def read_bytes(path: LocalPath, most: int = -1) -> bytes:
    """Read a file.

    Args:
        most: largest number of bytes to read; -1 for all.
    """
    with open_binary(path) as file:
        return file.read(most)


def read_text(path: LocalPath) -> str:
    """Read a UTF-8 file, with `\\n` at the end of each line."""
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - `path` may be a string
        return file.read()


def sha256_of_file(path: LocalPath) -> str:
    """Return the SHA-256 of a file's content, 64 hex digits."""
    with open(path, "rb") as file:  # noqa: PTH123 - `path` may be a string
        return hashlib.file_digest(file, "sha256").hexdigest()


def status(path: LocalPath) -> os.stat_result:
    """Return size, times and inode of a file."""
    return os.stat(path)  # noqa: PTH116 - `path` may be a string


def file_bytes(path: LocalPath) -> int:
    """Return the size of a file in bytes."""
    return status(path).st_size


def map_file(path: LocalPath) -> mmap.mmap:
    """Map a file read-only.

    Raises:
        ValueError: the file is empty.
    """
    with open_binary(path) as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


class Ranges:
    """An open file, read by ranges.

    Attributes:
        bytes: its size.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.bytes = os.fstat(descriptor).st_size

    def read(self, at: int, size: int) -> bytes:
        """Read `size` bytes starting at `at`; fewer only at the end of the file."""
        data = os.pread(self._descriptor, size, at)
        while len(data) < size and (more := os.pread(self._descriptor, size - len(data), at + len(data))):
            data += more
        return data


@contextmanager
def open_ranges(path: LocalPath) -> Iterator[Ranges]:
    """Open a file to read it by ranges."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield Ranges(descriptor)
    finally:
        os.close(descriptor)
