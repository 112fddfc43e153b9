"""Define what any place for bytes can do: a local disk, an object store, a web server.

`Store` is the reading side: open, look up, list. That is all readers need, and small enough that any fsspec file
system offers it (`tasks.storage.remote`). Writing is local (`tasks.storage.atomic`); a back end that writes remotely
adds conditional puts beside these methods, in a protocol of their own.

Paths are text with `/`, in the store's own form.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from tasks.storage.reading import open_binary, read_most


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or folder under a path.

    Attributes:
        path: including the folder it was listed in.
        is_folder: a folder, or a link to one; otherwise a file, or a link that may lead nowhere.
    """

    path: str
    is_folder: bool

    @property
    def name(self) -> str:
        """The last part of the path.

        >>> Entry("a/b/", True).name
        'b'
        """
        return self.path.rstrip("/").rpartition("/")[2]


class Store(Protocol):
    """A place to read from. Every method raises `OSError` when a local disk would."""

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading, with seek."""
        ...

    def head(self, path: str) -> Entry | None:
        """Look up a path; return `None` if nothing is there."""
        ...

    def list(self, folder: str) -> list[Entry]:
        """List what is directly below a folder, unsorted; pipes and devices count as files, which do not open."""
        ...

    def identity(self, folder: str) -> Hashable:
        """Return a value that is equal for all paths to one folder, so that a walk enters it once."""
        ...


class LocalStore:
    """The local disk and everything mounted on it."""

    def open(self, path: str) -> BinaryIO:
        """See `Store`."""
        return open_binary(path)

    def head(self, path: str) -> Entry | None:
        """See `Store`."""
        if not os.path.lexists(path):
            return None
        return Entry(path, os.path.isdir(path))  # noqa: PTH112 - `path` is a string

    def list(self, folder: str) -> list[Entry]:
        """See `Store`."""
        with os.scandir(folder) as listing:
            return [Entry(entry.path, _is(entry.is_dir)) for entry in listing]

    def identity(self, folder: str) -> Hashable:
        """See `Store`."""
        found = os.stat(folder)  # noqa: PTH116 - `folder` is a string
        return found.st_dev, found.st_ino


def _is(kind: Callable[[], bool]) -> bool:
    """Return whether a path is of a kind; a circular link is of none."""
    try:
        return kind()
    except OSError:
        return False


LOCAL = LocalStore()


def read_stored(store: Store, path: str, most: int = -1) -> bytes:
    """Read a small file of a store.

    Args:
        most: largest number of bytes to read; -1 for all.
    """
    with store.open(path) as file:
        return read_most(file, most)
