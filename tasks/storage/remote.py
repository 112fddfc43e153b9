"""Read files behind a URI through fsspec: `s3://`, `hf://`, `https://`, any with a handler installed."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, BinaryIO

from schemas.errors import ConfigError
from tasks.storage.store import Entry


class FsspecStore:
    """An fsspec file system as a `Store`; files are read range by range, never copied whole."""

    def __init__(self, system: Any) -> None:
        self._system = system

    def open(self, path: str) -> BinaryIO:
        """See `Store`."""
        file: BinaryIO = self._system.open(path, "rb")
        return file

    def head(self, path: str) -> Entry | None:
        """See `Store`."""
        try:
            return Entry(path, self._system.info(path)["type"] == "directory")
        except FileNotFoundError:
            return None

    def list(self, folder: str) -> list[Entry]:
        """See `Store`."""
        here = folder.rstrip("/")
        found = [
            Entry(str(item["name"]), item["type"] == "directory")
            for item in self._system.ls(folder, detail=True)
        ]
        # Object stores list the empty object that stands for the folder itself.
        return [entry for entry in found if entry.path.rstrip("/") != here]

    def identity(self, folder: str) -> Hashable:
        """See `Store`."""
        return folder.rstrip("/")

    def uri(self, path: str) -> str:
        """Return the URI that leads to a path of this store."""
        return str(self._system.unstrip_protocol(path))


def open_uri(uri: str) -> BinaryIO:
    """Open a file behind a URI to read it by ranges. Errors as `store_at`, and `OSError`."""
    store, path = store_at(uri)
    return store.open(path)


def store_at(uri: str) -> tuple[FsspecStore, str]:
    """Return the store of a URI, and the path in it.

    Raises:
        ConfigError: `unsupported_uri`: fsspec has no handler for it, or the handler is not installed.
    """
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(uri)
    except (ValueError, ImportError) as error:
        raise ConfigError(f"fsspec cannot open this: {error}", code="unsupported_uri", where=uri) from error
    return FsspecStore(system), str(path)
