"""Read local files: whole, opened, mapped, or by ranges. For Parquet see `tasks.storage.parquet`.

Only regular files are opened: to open a pipe waits until someone writes to it, perhaps for ever, and a device has no
end.
"""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from schemas.errors import system_error

LocalPath = str | os.PathLike[str]

_PIECE_BYTES = 1 << 20


def open_regular(path: LocalPath, flags: int = os.O_RDONLY) -> int:
    """Open a regular file and return its descriptor; also an `opener` for `open`.

    Raises:
        OSError: the system refuses, or it is a folder, a pipe, a socket or a device.
        StorageError: `limit`: no more files may be opened.
    """
    try:
        # Without waiting for the other end of a pipe; files are read the same way.
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        # Not an OSError, which says something about this file: it may be judged, skipped or made again for it.
        if error.errno in (errno.EMFILE, errno.ENFILE) and (limit := system_error(error)) is not None:
            raise limit from error
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is a pipe or a device, not a file; move it away", str(path))


def open_binary(path: LocalPath, buffering: int = -1) -> BinaryIO:
    """Open a file for reading.

    Args:
        buffering: bytes to read ahead; 0 for none, -1 for Python's default.
    """
    return open(path, "rb", buffering, opener=open_regular)


def read_bytes(path: LocalPath, most: int = -1) -> bytes:
    """Read a file.

    Args:
        most: largest number of bytes to read; -1 for all.
    """
    with open_binary(path) as file:
        return read_most(file, most)


def read_most(file: BinaryIO, most: int) -> bytes:
    """Read at most `most` bytes of an open file; -1 for all. Python would allocate all that may come."""
    if most < 0:
        return file.read()
    pieces = []
    while most and (piece := file.read(min(most, _PIECE_BYTES))):
        pieces.append(piece)
        most -= len(piece)
    return b"".join(pieces)


def read_given(path: LocalPath, most: int) -> bytes:
    """Read at most `most` bytes of a file that a user names, which may be what a shell passes in (`/dev/stdin`).

    Raises:
        OSError: as `open_regular`.
    """
    passed = str(path).startswith(("/dev/stdin", "/dev/fd/", "/proc/self/fd/"))
    if not passed or stat.S_ISBLK(status(path).st_mode):
        return read_bytes(path, most)
    with open(path, "rb") as file:  # noqa: PTH123 - `path` may be a string
        return file.read(most)


def read_text(path: LocalPath) -> str:
    """Read a UTF-8 file, with `\\n` at the end of each line."""
    with open(path, encoding="utf-8", opener=open_regular) as file:
        return file.read()


def parse_json(content: bytes | str) -> Any:
    """Parse JSON that anyone may have written.

    Raises:
        ValueError: it is not JSON, or its arrays and objects are nested too deeply.
    """
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def sha256_of_file(path: LocalPath) -> str:
    """Return the SHA-256 of a file's content, 64 hex digits."""
    with open(path, "rb", opener=open_regular) as file:
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
    descriptor = open_regular(path)
    try:
        yield Ranges(descriptor)
    finally:
        os.close(descriptor)
