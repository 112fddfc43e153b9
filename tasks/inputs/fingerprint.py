"""Remember what is in input files by their path, inode, size, mtime and ctime: digests, and where they can be cut.

The memo is in the output directory, so a re-run of an unchanged configuration reads no input at all, and one with a
changed file reads that file alone.
A file modified less than two seconds before it was hashed is not remembered: within the granularity of the
file system's clock it could change again without its times changing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from schemas.errors import InputError, remedy
from tasks.inputs.parts import Cut
from tasks.inputs.survey import Block, FileContent, Survey, blocks_of, content_of, survey_here
from tasks.storage.atomic import write_file
from tasks.storage.reading import parse_json, read_bytes, status

_SETTLED_NS = 2_000_000_000
# Of the memo; another one is ignored.
_FORMAT = 3


def identity_of(path: str) -> list[int]:
    """Return what a file looks like: inode, size, mtime and ctime.

    Raises:
        InputError: `unreadable`: it is missing, or cannot be accessed.
    """
    try:
        found = status(path)
    except OSError as error:
        raise InputError(f"cannot read this input: {remedy(error)}", code="unreadable", where=path) from error
    return [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def is_settled(identity: Sequence[int]) -> bool:
    """Return whether a file of this status can be known by it.

    Within the granularity of the file system's clock a file may change again without its times changing.
    """
    return time.time_ns() - max(identity[2], identity[3]) > _SETTLED_NS


class Fingerprints:
    """What is in a run's inputs, and whether it is still.

    Args:
        memo: the memo file; absent or unreadable means an empty memo.
    """

    def __init__(self, memo: Path) -> None:
        self._memo_path = memo
        self._known: dict[str, list[Any]] = {}
        self._seen: dict[str, list[int]] = {}
        self._dirty = False
        with contextlib.suppress(OSError, LookupError, TypeError, ValueError):
            loaded = parse_json(read_bytes(memo))
            # A flipped bit could be a digest of other bytes, and a run of another name.
            if loaded == _sealed(loaded["files"]):
                self._known = dict(loaded["files"])

    def contents(self, paths: Iterable[Path], survey: Survey = survey_here) -> list[FileContent]:
        """Return what is in each file, reading only those not remembered.

        Args:
            survey: reads them.

        Raises:
            InputError: a file is missing or unreadable.
        """
        names = [str(path) for path in paths]
        found: dict[str, FileContent] = {}
        missing: dict[str, list[Block]] = {}
        for name in names:
            identity = self._seen[name] = identity_of(name)
            known = self._remembered(name, identity)
            if known is None:
                missing[name] = blocks_of(name, identity[1])
            else:
                found[name] = known
        if missing:
            found |= self._read(missing, survey)
        return [found[name] for name in names]

    def _remembered(self, name: str, identity: list[int]) -> FileContent | None:
        try:
            *status, digest, cuts = self._known[_key(name)]
            if status == identity:
                return FileContent(digest, tuple(Cut(*cut) for cut in cuts))
        except (LookupError, TypeError, ValueError):
            # Not remembered, or damaged.
            pass
        return None

    def _read(self, missing: Mapping[str, Sequence[Block]], survey: Survey) -> dict[str, FileContent]:
        contents = iter(survey([block for blocks in missing.values() for block in blocks]))
        found = {}
        for name, blocks in missing.items():
            identity = self._seen[name]
            read = found[name] = content_of(name, identity[1], [next(contents) for _ in blocks])
            if is_settled(identity):
                self._known[_key(name)] = [*identity, read.digest, read.cuts]
                self._dirty = True
        return found

    def save(self) -> None:
        """Write the memo, if there is anything new."""
        if self._dirty:
            # Keys of JSON are texts, and pairs are lists.
            known = json.loads(json.dumps(self._known))
            write_file(self._memo_path, json.dumps(_sealed(known)).encode())
            self._dirty = False

    def identities(self) -> dict[str, list[int]]:
        """Return the file status of every input when it was read, to check again before publishing."""
        return dict(self._seen)


def _sealed(files: Any) -> dict[str, Any]:
    content = json.dumps(files, sort_keys=True).encode()
    return {"format": _FORMAT, "sha256": hashlib.sha256(content).hexdigest(), "files": files}


def _key(path: str) -> str:
    return os.path.abspath(path)  # noqa: PTH100 - resolve() would follow links and merge two names


def check_unchanged(identities: Mapping[str, Sequence[int]]) -> None:
    """Check that no input changed since it was hashed.

    Raises:
        InputError: naming the first file that changed.
    """
    for path, identity in identities.items():
        # Compare inode, size and mtime; ctime also changes when a hard link is added.
        if identity_of(path)[:3] != list(identity[:3]):
            raise InputError(
                "this input changed while the run was reading it; nothing was published; run it again",
                code="input_changed",
                where=path,
            )
