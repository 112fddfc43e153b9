"""Compute content digests of input files, memoised by path, inode, size, mtime and ctime.

The memo is in the output directory, so a re-run of an unchanged configuration reads no input at all.
A file modified less than two seconds before it was hashed is not remembered: within the granularity of the
file system's clock it could change again without its times changing.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from schemas.errors import InputError, remedy
from tasks.storage.atomic import write_file
from tasks.storage.reading import parse_json, read_bytes, sha256_of_file, status
from tasks.storage.threads import map_threads

_SETTLED_NS = 2_000_000_000


def _identity(path: Path) -> list[int]:
    try:
        found = status(path)
    except OSError as error:
        raise InputError(
            f"cannot read this input: {remedy(error)}", code="unreadable", where=str(path)
        ) from error
    return [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content, 64 hex digits.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        return sha256_of_file(path)
    except OSError as error:
        raise InputError(
            f"cannot read this input: {remedy(error)}", code="unreadable", where=str(path)
        ) from error


class Fingerprints:
    """The digests of a run's inputs, and whether they are still valid.

    Args:
        memo: the memo file; absent or unreadable means an empty memo.
    """

    def __init__(self, memo: Path) -> None:
        self._memo_path = memo
        self._known: dict[str, list[int | str]] = {}
        self._seen: dict[Path, list[int]] = {}
        self._dirty = False
        with contextlib.suppress(OSError, ValueError):
            loaded = parse_json(read_bytes(memo))
            if isinstance(loaded, dict):
                self._known = {key: known for key, known in loaded.items() if _is_memo(known)}

    def digests(self, paths: Iterable[Path]) -> list[str]:
        """Return the SHA-256 of each path, hashing only those not remembered, on a few threads.

        Raises:
            InputError: a file is missing or unreadable.
        """
        return map_threads(self._digest, paths, min(8, os.cpu_count() or 1))

    def _digest(self, path: Path) -> str:
        key = os.path.abspath(path)  # noqa: PTH100 - resolve() would follow links and merge two names
        identity = _identity(path)
        self._seen[path] = identity
        known = self._known.get(key)
        if known is not None and known[:4] == identity:
            return str(known[4])
        digest = sha256_of(path)
        # Within the granularity of the file system's clock the file may change again without its times changing.
        if time.time_ns() - max(identity[2], identity[3]) > _SETTLED_NS:
            self._known[key] = [*identity, digest]
            self._dirty = True
        return digest

    def save(self) -> None:
        """Write the memo, if there is anything new."""
        if self._dirty:
            write_file(self._memo_path, json.dumps(self._known, sort_keys=True).encode())
            self._dirty = False

    def identities(self) -> dict[str, list[int]]:
        """Return the file status of every input when it was hashed, to check again before publishing."""
        return {str(path): identity for path, identity in self._seen.items()}


def _is_memo(known: object) -> bool:
    return isinstance(known, list) and len(known) == 5 and isinstance(known[4], str)


def check_unchanged(identities: Mapping[str, Sequence[int]]) -> None:
    """Check that no input changed since it was hashed.

    Raises:
        InputError: naming the first file that changed.
    """
    for path, identity in identities.items():
        # Compare inode, size and mtime; ctime also changes when a hard link is added.
        if _identity(Path(path))[:3] != list(identity[:3]):
            raise InputError(
                "this input changed while the run was reading it; nothing was published; run it again",
                code="input_changed",
                where=path,
            )
