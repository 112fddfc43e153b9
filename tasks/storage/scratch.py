"""A file without a name, for data that is larger than memory and gone with the process."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, Self

from schemas.errors import StorageError
from tasks.storage.atomic import storage_errors
from tasks.storage.names import make_folder


class Scratch:
    """An unnamed file on the disk of `folder`: appended to, then read by ranges.

    Attributes:
        bytes: written so far.

    Raises:
        StorageError: it cannot be created, written or read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.bytes = 0
        with storage_errors(folder, "create a temporary file"):
            make_folder(folder)
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - closed by `close`

    def append(self, data: Any) -> int:
        """Append a bytes-like object; return where it begins, in bytes."""
        view = memoryview(data).cast("B")
        start = self.bytes
        with storage_errors(self._folder, "write a temporary file"):
            while view:
                written = self._file.write(view)
                self.bytes += written
                view = view[written:]
        return start

    def read_into(self, buffer: Any, start: int) -> None:
        """Fill a buffer with the bytes from `start` on, all of which have been appended.

        Raises:
            StorageError: `short_read`, they are not there.
        """
        view = memoryview(buffer).cast("B")
        with storage_errors(self._folder, "read a temporary file"):
            while view:
                read = os.preadv(self._file.fileno(), [view], start)
                if not read:
                    raise StorageError(
                        "a temporary file in this folder is shorter than what was written to it; run again",
                        code="short_read",
                        where=str(self._folder),
                    )
                view, start = view[read:], start + read

    def close(self) -> None:
        """Give the space back."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.close()
