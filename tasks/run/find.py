"""Find what is at a path or behind a URI: a run, unpublished files, a loose folder, or one file.

Only structure decides, and only the structure that every flow shares: the marker of an output folder,
the names `latest`, `runs` and `stages`, and a manifest with `config.json` and `inputs.json` beside it. What the files
contain is up to their domain. A run is resolved once, here: a later move of `latest` has no effect.

All access goes through a `Store`, local or remote, so the logic exists once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import unquote

from schemas.errors import ConfigError, InputError, IntegrityError, remedy
from schemas.run import RunManifest
from tasks.run.layout import CONFIG, INPUTS, LATEST, MANIFEST, MARKER, RUNS, STAGES
from tasks.run.manifest import MOST_BYTES, parse_manifest
from tasks.storage.listing import matches
from tasks.storage.names import link_target
from tasks.storage.reading import parse_json, read_bytes
from tasks.storage.remote import store_at
from tasks.storage.store import LOCAL, Entry, Store, read_stored

# A local path, or a URI that fsspec understands.
Location = TypeVar("Location", Path, str)

_NOTES = frozenset({MANIFEST, CONFIG, INPUTS})


class Kind(StrEnum):
    """The kinds of things a path can lead to.

    `UNPUBLISHED` is a part of an output folder outside any published run: `stages`, a stage, or anything below a run
    that has no manifest.
    """

    RUN = "run"
    UNPUBLISHED = "unpublished"
    FOLDER = "folder"
    FILE = "file"


@dataclass(frozen=True)
class Found(Generic[Location]):
    """The result of a search: what a path leads to.

    Attributes:
        named: the path that the user gave.
        folder: for a run, its own folder with all links resolved; otherwise `named`.
        read: for a run, its manifest, or the error that reading it raised.
    """

    named: Location
    kind: Kind
    folder: Location
    read: RunManifest | IntegrityError | None = None

    @property
    def is_run(self) -> bool:
        """Whether this is a run."""
        return self.kind is Kind.RUN

    @property
    def manifest(self) -> RunManifest:
        """The manifest of a run.

        Raises:
            IntegrityError: `no_manifest`, the run is not complete; `bad_manifest`, `ledger`, it is damaged.
            ConfigError: `missing_path`, this is not a run.
        """
        if isinstance(self.read, IntegrityError):
            raise self.read
        if self.read is None:
            raise ConfigError("this is not a run", code="missing_path", where=str(self.named))
        return self.read

    def manifest_of(self, flow: str, holds: str, code: str = "other_flow") -> RunManifest:
        """Return the manifest of a published run of one flow.

        Args:
            holds: what such a run contains, for the message.
            code: error code for other flows and damaged manifests.

        Raises:
            ConfigError: `unpublished`, the run has no manifest yet; `code`, it belongs to another flow or is damaged.
        """
        try:
            manifest = self.manifest
        except IntegrityError as error:
            if error.code == "no_manifest":
                raise _unpublished(f"this run has no {MANIFEST}, so it is not published", self) from None
            raise ConfigError(error.message, code=code, where=error.where) from None
        if manifest.flow != flow:
            raise ConfigError(
                f"this is a run of {manifest.flow!r}, which holds no {holds}; name a run of {flow!r}",
                code=code,
                where=str(self.folder),
            )
        return manifest

    def refuse_unpublished(self) -> None:
        """Refuse files that are in an output folder but not in a published run.

        Raises:
            ConfigError: `unpublished`.
        """
        if self.kind is Kind.UNPUBLISHED:
            raise _unpublished("these files are in an output folder but not in a published run", self)

    def at(self, name: str) -> Location:
        """Return the location of a file in this folder.

        Args:
            name: relative to the folder, with `/`.
        """
        return self.folder / name if isinstance(self.folder, Path) else f"{self.folder}/{name}"

    def outputs(self, start: str = "", ending: str = "") -> tuple[Location, ...]:
        """Return the files of a run whose published names begin and end like this, sorted by name."""
        names = sorted(record.path for record in self.manifest.outputs)
        return tuple(self.at(name) for name in names if name.startswith(start) and name.endswith(ending))


def _unpublished(what: str, found: Found[Any]) -> ConfigError:
    return ConfigError(
        f"{what}; run the flow to the end, then name the output folder or a run in it",
        code="unpublished",
        where=str(found.named),
    )


def find(path: Path) -> Found[Path]:
    """Find what is at a local path. An output folder stands for its latest run.

    Raises:
        ConfigError: `missing_path`: nothing is there, or only an output folder without a published run.
        InputError: `unreadable`: it cannot be accessed.
    """
    kind, folder, read = _look(_Disk(), str(path), str(path))
    return Found(path, kind, Path(folder) if kind is Kind.RUN else path, read)


def find_uri(uri: str) -> Found[str]:
    """Find what is behind a URI; a copied run or output folder whose links became files still counts as one.

    Raises:
        ConfigError: `missing_path`, as `find`; `unsupported_uri`: fsspec has no such protocol.
        InputError: `unreadable`: it cannot be accessed.
    """
    store, path = store_at(uri)
    kind, folder, read = _look(_Remote(store), path.rstrip("/"), uri)
    return Found(uri, kind, store.uri(folder), read)


def files_below(folder: Path, is_whole: Callable[[Path], bool]) -> Iterator[Path]:
    """List the files below a loose folder, folder by folder, sorted by name.

    Links to files count, linked folders are not entered, and hidden names are skipped, as they may be incomplete.

    Args:
        is_whole: whether a folder is a unit of its own, which is then listed as such, even if it is a link.

    Raises:
        ConfigError: `run_below`: there is an output folder or a run below, whose files have several names.
        InputError: `unreadable`: a folder cannot be listed.
    """
    found = _entries(folder)
    _refuse_run_below(((entry.name, str(folder)) for entry in found), str(folder))
    for entry in found:
        path = folder / entry.name
        if entry.name.startswith("."):
            continue
        if not entry.is_folder or is_whole(path):
            yield path
        elif not path.is_symlink():
            yield from files_below(path, is_whole)


def names_below(uri: str) -> list[str]:
    """List all files below a loose folder behind a URI, relative to it and sorted; hidden ones are skipped.

    Raises:
        ConfigError: `run_below`, as `files_below`.
        InputError: `unreadable`: it cannot be listed.
    """
    store, folder = store_at(uri)
    root = folder.rstrip("/")
    try:
        # Include hidden names here: the marker of an output folder is one.
        found = [entry.path for entry in matches(root, ("**",), store, hidden="") if not entry.is_folder]
    except OSError as error:
        raise _unreadable(error, uri) from error
    names = [path.removeprefix(root).lstrip("/") for path in found]
    _refuse_run_below(((_name(name), _parent(name)) for name in names), uri)
    shown = (name for name in names if not any(part.startswith(".") for part in name.split("/")))
    # Folder by folder, as `files_below` lists them: "a/x" comes before "a-b/x".
    return sorted(shown, key=lambda name: name.split("/"))


def refuse_runs_below(root: Path, files: Iterable[Path]) -> None:
    """Refuse files that belong to a run or an output folder below a loose folder, as `files_below` also does.

    Raises:
        ConfigError: `run_below`.
    """
    folders = {
        above for file in files for above in file.parents if above != root and above.is_relative_to(root)
    }
    for folder in sorted(folders):
        _refuse_run_below(((entry.name, str(folder)) for entry in _entries(folder)), str(root))


def _entries(folder: Path) -> list[Entry]:
    try:
        return sorted(LOCAL.list(str(folder)), key=lambda entry: entry.name)
    except OSError as error:
        raise _unreadable(error, str(folder)) from error


def _refuse_run_below(names: Iterable[tuple[str, str]], where: str) -> None:
    """Refuse a folder that contains a run or an output folder.

    Args:
        names: each file's name and folder.
    """
    notes: dict[str, set[str]] = {}
    for name, folder in names:
        if name == MARKER or name in _NOTES:
            notes.setdefault(folder, set()).add(name)
    for folder, found in notes.items():
        if MARKER in found or found >= _NOTES:
            what = "an output folder" if MARKER in found else "a run"
            raise ConfigError(
                f"{what} is in this folder: {folder or '.'}; name that instead, as its files have several names",
                code="run_below",
                where=where,
            )


def copied_names(found: Found[Any], names: Iterable[str]) -> list[str]:
    """List which names at the top of an output folder are copies of the run's files instead of links to them.

    None are unless an output folder was named; `cp -rL` and object stores make such copies.

    Raises:
        InputError: `unreadable`.
    """
    local = isinstance(found.named, Path)
    files: _Files = _Disk() if local else _Remote(store_at(found.named)[0])
    root = str(found.named) if local else store_at(found.named)[1].rstrip("/")
    if files.kind(f"{root}/{MARKER}") != "file":
        return []
    linked = {name for name in names if local and link_target(found.named / name) is not None}
    return [name for name in names if name not in linked and files.kind(f"{root}/{name}") is not None]


def is_file(location: str | os.PathLike[str]) -> bool:
    """Return whether there is a file at a local path or behind a URI.

    Raises:
        InputError: `unreadable`.
        ConfigError: `unsupported_uri`.
    """
    path = local_path(location)
    if path is not None:
        return path.is_file()
    store, there = store_at(os.fspath(location))
    return _Remote(store).kind(there) == "file"


def content_of(location: str | os.PathLike[str]) -> bytes:
    """Read a small file at a local path or behind a URI.

    Raises:
        OSError: it does not exist, or cannot be read.
        ConfigError: `unsupported_uri`.
    """
    path = local_path(location)
    if path is not None:
        return read_bytes(path)
    return read_stored(*store_at(os.fspath(location)))


def local_path(location: str | os.PathLike[str]) -> Path | None:
    """Return a location as a local path; `None` for a URI other than `file://`.

    >>> local_path("s3://bucket/shards"), str(local_path("file:///data/a%20b"))
    (None, '/data/a b')
    """
    text = os.fspath(location)
    scheme, separator, rest = text.partition("://")
    if separator and scheme == "file":
        return Path(unquote(rest))
    return None if separator and scheme.isalnum() else Path(text).expanduser()


def _look(files: _Files, path: str, named: str) -> tuple[Kind, str, RunManifest | IntegrityError | None]:
    kind = files.kind(path)
    if kind == "file":
        return Kind.FILE, path, None
    # A web server need not list folders, so their files are asked for before "nothing is there" is certain.
    for folder in (path, f"{path}/{LATEST}") if kind or isinstance(files, _Remote) else ():
        settled = files.settled(folder)
        read = _manifest_in(files, settled)
        if read is not None:
            return Kind.RUN, settled, read
    if kind is None:
        raise ConfigError("nothing is there", code="missing_path", where=named)
    if files.kind(f"{path}/{MARKER}") == "file":
        raise ConfigError(
            "there is no published run in this output folder yet; run its flow to the end",
            code="missing_path",
            where=named,
        )
    is_part = _is_part_of_output_folder(files, files.settled(path))
    return (Kind.UNPUBLISHED if is_part else Kind.FOLDER), path, None


def _manifest_in(files: _Files, folder: str) -> RunManifest | IntegrityError | None:
    """Read the manifest of the run in this folder, or return the error; `None` if this is not a run.

    Other tools write a `manifest.json` too. An unreadable one counts as a run's if it is where runs are, if it has a
    run's hash, or if the files that we write beside a manifest are there.
    """
    where = f"{folder}/{MANIFEST}"
    content = files.read(where)
    if content is None:
        if not (_is_place_of_run(files, folder) and files.kind(folder) == "directory"):
            return None
        return IntegrityError("the run has no manifest; it is not complete", code="no_manifest", where=where)
    try:
        return parse_manifest(content, where, lambda name: files.read(f"{folder}/{name}"))
    except IntegrityError as error:
        notes = (f"{folder}/{name}" for name in _NOTES)
        is_ours = (
            (len(content) <= MOST_BYTES and _has_run_hash(content))
            or _is_place_of_run(files, folder)
            or all(files.kind(note) == "file" for note in notes)
        )
        return error if is_ours else None


def _has_run_hash(content: bytes) -> bool:
    try:
        found = parse_json(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and "run_hash" in found


def _is_place_of_run(files: _Files, folder: str) -> bool:
    """Return whether this is `{output folder}/runs/{name}`."""
    runs = _parent(folder)
    return _name(runs) == RUNS and files.kind(f"{_parent(runs)}/{MARKER}") == "file"


def _is_part_of_output_folder(files: _Files, folder: str) -> bool:
    """Return whether this is at or below `{output folder}/stages`, or below a run without a manifest."""
    while folder:
        above = _parent(folder)
        if _name(folder) == STAGES and files.kind(f"{above}/{MARKER}") == "file":
            return True
        if _is_place_of_run(files, folder):
            return files.kind(f"{folder}/{MANIFEST}") != "file"
        folder = above
    return False


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _name(path: str) -> str:
    return path.rpartition("/")[2]


class _Files:
    """A store with the questions `_look` asks; paths are text with `/`."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def kind(self, path: str) -> str | None:
        """Return `file`, `directory`, or `None` if nothing is there."""
        try:
            entry = self.store.head(path)
        except NotADirectoryError:
            return None
        except OSError as error:
            raise _unreadable(error, path) from error
        return None if entry is None else "directory" if entry.is_folder else "file"

    def read(self, path: str) -> bytes | None:
        """Read a manifest, or a byte more than one may have; return `None` if there is none."""
        if self.kind(path) != "file":
            return None
        try:
            return read_stored(self.store, path, MOST_BYTES + 1)
        except OSError as error:
            raise _unreadable(error, path) from error

    def settled(self, folder: str) -> str:
        """Return a name of the folder that stays valid when `latest` moves."""
        raise NotImplementedError


class _Disk(_Files):
    """Local disk."""

    def __init__(self) -> None:
        super().__init__(LOCAL)

    def kind(self, path: str) -> str | None:
        try:
            # Links are followed: a dangling one counts as missing.
            return super().kind(path) if os.path.exists(path) else None  # noqa: PTH110 - `path` is a string
        except ValueError:  # a NUL
            return None

    def settled(self, folder: str) -> str:
        return os.path.realpath(folder)


class _Remote(_Files):
    """Files behind a URI, where there are no links to follow."""

    def settled(self, folder: str) -> str:
        if _name(folder) != LATEST:
            return folder
        # `latest` is a copy here; its manifest gives the hash, which names the original run beside it.
        content = self.read(f"{folder}/{MANIFEST}")
        try:
            run = f"{_parent(folder)}/{RUNS}/{parse_json(content or b'{}')['run_hash']}"
        except (ValueError, LookupError, TypeError):
            return folder
        return run if self.read(f"{run}/{MANIFEST}") == content else folder


def _unreadable(error: OSError, path: str) -> InputError:
    return InputError(f"cannot be read: {remedy(error)}", code="unreadable", where=path)
