"""List folders: entries, everything below, and what a pattern matches, alike on every store.

Results are sorted, as machines differ in listing order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from schemas.errors import InputError
from tasks.storage.reading import file_bytes
from tasks.storage.store import LOCAL, Entry, Store

_WILD = frozenset("*?[")


def is_pattern(text: str) -> bool:
    """Return whether a path or a name contains wildcards.

    >>> is_pattern("runs/*.parquet"), is_pattern("runs/a.parquet")
    (True, False)
    """
    return not _WILD.isdisjoint(text)


def entries(folder: Path, name: str = "*") -> list[Path]:
    """List what is directly below a folder, sorted; nothing if there is no such folder.

    Args:
        name: a pattern that the names match.
    """
    try:
        return sorted(path for path in folder.iterdir() if fnmatchcase(path.name, name))
    except (FileNotFoundError, NotADirectoryError):
        return []


def walk(folder: Path, name: str = "*") -> list[Path]:
    """List everything below a folder, sorted, hidden names and links included, without following links to folders.

    Args:
        name: a pattern that the names match.
    """
    return sorted(folder.rglob(name))


def glob(pattern: str, store: Store = LOCAL, hidden: str = ".") -> list[str]:
    """Return the paths of files and folders that a pattern matches, sorted.

    Args:
        pattern: `*`, `?` and `[…]` stand for characters of a name; `**` for any number of names, or none.
        hidden: prefixes of names to skip, unless a name in the pattern starts with one.

    Raises:
        InputError: `unreadable`: a folder cannot be listed.
    """
    parts = pattern.split("/")
    wild = next((place for place, part in enumerate(parts) if is_pattern(part)), len(parts))
    root = "/".join(parts[:wild]) or ("/" if wild else ".")
    start = "" if wild else "./"
    with _listing(root):
        return sorted(entry.path.removeprefix(start) for entry in matches(root, parts[wild:], store, hidden))


def files_below(path: str, store: Store) -> list[str]:
    """Return the sorted paths of all files below a folder, or of `path` itself if it is a file; none if missing.

    Raises:
        InputError: `unreadable`: a folder cannot be listed.
    """
    with _listing(path):
        head = store.head(path)
        if head is None or not head.is_folder:
            return [path] if head else []
        return sorted(entry.path for entry in matches(path, ("**",), store) if not entry.is_folder)


@contextmanager
def _listing(root: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = str(error.filename or root)
        raise InputError(f"cannot be listed: {error}", code="unreadable", where=where) from error


def matches(root: str, parts: Sequence[str], store: Store = LOCAL, hidden: str = ".") -> Iterator[Entry]:
    """Yield the files and folders below `root` that a pattern matches, unsorted; see `glob`.

    A folder reached by several names is entered once per remaining pattern, which also ends
    loops of links.

    Args:
        root: taken literally, wildcards included.
        parts: the pattern, split at `/`.

    Raises:
        OSError: a folder cannot be listed; `filename` says which.
    """
    parts = [part for part in parts if part]
    skipped = tuple(set(hidden) - {part[0] for part in parts})
    start = _opened(parts, {0})
    if len(parts) in start and (head := store.head(root)) is not None:
        yield head
    entered: set[object] = set()
    pending = [(root, start)]
    while pending:
        folder, states = pending.pop()
        try:
            key = store.identity(folder), states
            found = [] if key in entered else store.list(folder)
        except (FileNotFoundError, NotADirectoryError):
            if folder != root:
                raise
            return
        entered.add(key)
        # Enter the smallest name first, so every machine reaches a folder by the same one of its names.
        for entry in sorted(found, key=lambda entry: os.fsencode(entry.name), reverse=True):
            name = entry.name
            if skipped and name.startswith(skipped):
                continue
            after = _step(parts, states, name)
            if len(parts) in after:
                yield entry
            if entry.is_folder and after - {len(parts)}:
                pending.append((entry.path, after))


def _step(parts: Sequence[str], states: frozenset[int], name: str) -> frozenset[int]:
    """Return which parts of a pattern may come next, after `name`."""
    reached = set()
    for state in states:
        if state == len(parts):
            continue
        if parts[state] == "**":
            reached.add(state)
        elif fnmatchcase(name, parts[state]):
            reached.add(state + 1)
    return _opened(parts, reached)


def _opened(parts: Sequence[str], states: set[int]) -> frozenset[int]:
    """Return `states` and those reached from them when `**` matches nothing."""
    opened = set(states)
    for state in sorted(states):
        while state < len(parts) and parts[state] == "**":
            state += 1
            opened.add(state)
    return frozenset(opened)


def stored_bytes(path: Path) -> int:
    """Return the size of a file, or of the files directly below a folder."""
    return sum(file_bytes(file) for file in (entries(path) if path.is_dir() else [path]))
