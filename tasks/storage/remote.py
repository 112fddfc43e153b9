"""Read files behind a URI through fsspec: `s3://`, `hf://`, `https://`, any with a handler installed."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from pathlib import Path
from typing import Any, BinaryIO

from schemas.errors import ConfigError, refuse_secrets
from tasks.storage.reading import open_binary
from tasks.storage.store import Entry

_PIECE = 1 << 22


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
            info = self._system.info(path)
        except FileNotFoundError:
            return None
        # To fsspec everything behind http is a file; what lists a folder is a page, with or without index.html.
        is_page = str(info.get("mimetype", "")).startswith("text/html") and not path.endswith(".html")
        return Entry(path, is_page or info["type"] == "directory")

    def bytes(self, path: str) -> int:
        """Return the size of a file.

        Raises:
            FileNotFoundError: nothing is there.
        """
        return int(self._system.info(path)["size"])

    def sha256(self, path: str) -> str:
        """Return the SHA-256 of a file's content, 64 hex digits; it is read in pieces.

        Raises:
            FileNotFoundError: nothing is there.
        """
        digest = hashlib.sha256()
        with self.open(path) as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
        return digest.hexdigest()

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


def open_location(location: Path | str) -> BinaryIO:
    """Open a local path, or a file behind a URI (text)."""
    return open_binary(location) if isinstance(location, Path) else open_uri(location)


def store_at(uri: str) -> tuple[FsspecStore, str]:
    """Return the store of a URI, and the path in it.

    Raises:
        ConfigError: `unsupported_uri`: fsspec has no handler for it, or the handler is not installed;
            `secret_in_uri`: it contains a password.
    """
    import fsspec

    refuse_secrets(uri, uri)

    try:
        system, path = fsspec.core.url_to_fs(uri)
    except (ValueError, ImportError) as error:
        raise ConfigError(f"fsspec cannot open this: {error}", code="unsupported_uri", where=uri) from error
    return FsspecStore(system), str(path)
