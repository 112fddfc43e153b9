"""Resolve a path in a configuration to the files it stands for, in the same order on every machine.

A path is a file, a folder (read recursively) or a glob. A file's `name` is what ledgers, rejects and hashes
call it: relative to the data set's root and with `/`, so a data set that moves keeps its names. Files are
sorted by the bytes of their name, never by listing order. Folders are entered once even if links lead to
them twice, which also ends link loops. Nothing is skipped silently except what is hidden (`.` or `_`
in front) or has another ending; a dangling link is an error, not an empty file, and so is a pipe or a device.

Importing this module is cheap: the check for a finished run lists inputs before it loads anything else.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from schemas.errors import ConfigError, InputError, remedy
from tasks.storage.listing import is_pattern, matches
from tasks.storage.reading import status

PATTERNS = ("*.jsonl", "*.jsonl.gz", "*.jsonl.zst", "*.parquet")
_HIDDEN = "._"


@dataclass(frozen=True)
class InputFile:
    """An input file: its location, its name, and its size in bytes."""

    path: Path
    name: str
    bytes: int


def resolve(path: str, patterns: tuple[str, ...] = PATTERNS) -> tuple[InputFile, ...]:
    """Find the files that `path` stands for, sorted by the bytes of their name.

    Args:
        path: a file, a folder, or a glob (`*`, `?`, `[…]` in a name; `**` for any number of folders); `~`
            and `file://` are understood. What exists under exactly this name is never read as a glob.
        patterns: supported file names.

    Returns:
        At least one file. Names are the file's own for a single file, relative to the folder for a folder,
        and relative to the folder before the first wildcard for a glob.

    Raises:
        ConfigError: `missing_path`: nothing is there; `no_files`: no supported file is there;
            `unsupported_file`: one file of another kind; `remote_input`: a URI of an object store.
        InputError: `unreadable`: a folder cannot be listed, a link leads nowhere, or a pipe or device has the
            name of an input; `bad_file_name`: a name is not UTF-8.
    """
    where = local_input(path)
    if not path:
        raise ConfigError("an input path is empty; give a file, a folder or a glob", code="missing_path")
    mode = _mode(where)
    if mode is not None and stat.S_ISDIR(mode):
        return _sorted(_found(where, ("**",), patterns), path, patterns)
    if mode is not None:
        if not stat.S_ISREG(mode) or not _supported(where.name, patterns):
            raise ConfigError(
                f"this file type is not supported; supported: {_endings(patterns)}",
                code="unsupported_file",
                where=path,
            )
        return (_file(where, where.name),)
    wild = next((i for i, part in enumerate(where.parts) if is_pattern(part)), None)
    root = where if wild is None else Path(*where.parts[:wild])
    if wild is None or _mode(root) is None:
        raise ConfigError(
            f"{str(root)!r} does not exist; check the spelling, relative paths start at {str(Path.cwd())!r}",
            code="missing_path",
            where=path,
        )
    return _sorted(_found(root, where.parts[wild:], patterns), path, patterns)


def files_below(root: Path, glob: str, patterns: tuple[str, ...] = PATTERNS) -> tuple[InputFile, ...]:
    """Find the supported files below `root` that `glob` matches, sorted by the bytes of their relative name.

    Args:
        root: taken literally, wildcard characters included.
        glob: relative to `root`, with `/`.

    Raises:
        ConfigError: `missing_path`: `root` is not a folder; `no_files`: nothing matches.
        InputError: as `resolve`.
    """
    mode = _mode(root)
    if mode is None or not stat.S_ISDIR(mode):
        raise ConfigError("no such folder", code="missing_path", where=str(root))
    return _sorted(_found(root, PurePosixPath(glob).parts, patterns), str(root / glob), patterns)


def local_input(path: str) -> Path:
    """Return the local path of an input; `~` and `file://` are understood.

    Raises:
        ConfigError: `remote_input`: it is a URI of an object store.
    """
    scheme, separator, rest = path.partition("://")
    if separator and scheme == "file":
        return Path(rest)
    if separator and scheme.isalnum():
        raise ConfigError(
            f"inputs are read from local or mounted folders, not from {scheme}://; copy or mount it first",
            code="remote_input",
            where=path,
        )
    return Path(path).expanduser().absolute()


def _mode(path: Path) -> int | None:
    try:
        return status(path).st_mode
    except (OSError, ValueError):  # a name that is too long or contains a NUL: it cannot exist
        return None


def _supported(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _endings(patterns: tuple[str, ...]) -> str:
    return ", ".join(pattern.removeprefix("*") for pattern in patterns)


def _file(path: Path, name: str) -> InputFile:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InputError(
            "a file name is not UTF-8, so no manifest could name it; rename the file",
            code="bad_file_name",
            where=os.fsencode(name).decode(errors="backslashreplace"),
        ) from None
    try:
        found = status(path)
    except OSError as error:
        raise _unreadable(path, error) from error
    if not stat.S_ISREG(found.st_mode):
        raise InputError(
            "it has the name of an input, but is a pipe, a socket or a device; move it away",
            code="unreadable",
            where=str(path),
        )
    return InputFile(path, name, found.st_size)


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(f"cannot be read: {remedy(error)}", code="unreadable", where=str(path))


def _sorted(files: Iterator[InputFile], path: str, patterns: tuple[str, ...]) -> tuple[InputFile, ...]:
    found = sorted(files, key=lambda file: file.name.encode())
    if not found:
        raise ConfigError(
            f"no file here has a supported ending; supported: {_endings(patterns)} "
            "(names that start with '.' or '_' are skipped)",
            code="no_files",
            where=path,
        )
    return tuple(found)


def _found(root: Path, glob: tuple[str, ...], patterns: tuple[str, ...]) -> Iterator[InputFile]:
    """Find the supported files below `root` whose relative path matches `glob`."""
    start = len(root.parts)
    try:
        for entry in matches(str(root), glob, hidden=_HIDDEN):
            if not entry.is_folder and _supported(entry.name, patterns):
                path = Path(entry.path)
                yield _file(path, "/".join(path.parts[start:]))
    except OSError as error:
        raise _unreadable(Path(error.filename or root), error) from error
