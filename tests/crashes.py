"""What a power cut may leave of a folder: a recorder of what happens to it, and a model of a strict file system.

`record` notes every operation below a folder in the order of the process. `Disk` replays them as a file system
without a journal may do: until a file is synced, its content may be lost, cut short or zeros; until a folder is
synced, any of the names that came, went or changed in it may be as before. A rename replaces a name in one step.

The model is stricter than common file systems: there, syncing a file often keeps its name, too.
"""

# Operations are recorded as they are made, and paths in them as text: pathlib would add operations of its own.
# ruff: noqa: PTH100, PTH112, PTH113, PTH114, PTH115, PTH117, PTH118

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

_WRITING = os.O_WRONLY | os.O_RDWR
_EVENTS = {"os.rename", "os.link", "os.symlink", "os.remove", "os.rmdir", "os.mkdir", "open"}
_active: list[_Recorder] = []


@dataclass(frozen=True)
class Operation:
    """One operation.

    Attributes:
        name: `create`, `mkdir`, `rename`, `link`, `symlink`, `unlink`, `sync_file`, `sync_folder`, `content`.
        path, other: below the folder; `other` is where a rename or a hard link leads to.
        data: content of a file, or the target of a symbolic link.
    """

    name: str
    path: str
    other: str = ""
    data: bytes = b""


class _Recorder:
    def __init__(self, root: Path) -> None:
        self.root = f"{root}{os.sep}"
        self.operations: list[Operation] = []

    def below(self, path: Any, folder: int = -1) -> str | None:
        text = os.fsdecode(path)
        if folder >= 0 and not os.path.isabs(text):
            text = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), text)
        text = os.path.abspath(text)
        return text[len(self.root) :] if f"{text}{os.sep}".startswith(self.root) else None

    def add(self, name: str, path: str | None, other: str | None = "", data: bytes = b"") -> None:
        if path is not None:
            self.operations.append(Operation(name, path, other or "", data))

    def content(self, path: str | None) -> None:
        """Note what is in a file now, synced or not."""
        full = os.path.join(self.root, path or "")
        if path and os.path.isfile(full) and not os.path.islink(full):
            self.add("content", path, data=Path(full).read_bytes())

    def event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, int) or not (flags or 0) & _WRITING:
                return
            below = self.below(path)
            self.add("create", below, data=b"1" if flags & os.O_EXCL else b"")
        elif event == "os.rename":
            source, target = self.below(arguments[0], arguments[2]), self.below(arguments[1], arguments[3])
            self.content(source)
            self.add("rename", source, target)
        elif event == "os.link":
            source, target = self.below(arguments[0], arguments[2]), self.below(arguments[1], arguments[3])
            self.content(source)
            self.add("link", source, target)
        elif event == "os.symlink":
            self.add("symlink", self.below(arguments[1], arguments[2]), data=os.fsencode(arguments[0]))
        elif event == "os.mkdir":
            self.add("mkdir", self.below(arguments[0], arguments[2]))
        else:
            self.add("unlink", self.below(arguments[0], arguments[1]))

    def sync(self, descriptor: int) -> None:
        full = os.readlink(f"/proc/self/fd/{descriptor}")
        below = self.below(full)
        if os.path.isdir(full):
            self.add("sync_folder", below)
        elif below is not None:
            self.add("sync_file", below, data=Path(full).read_bytes())


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _active and event in _EVENTS:
        recorder = _active.pop()  # so that its own reads are not events
        try:
            recorder.event(event, arguments)
        finally:
            _active.append(recorder)


_installed: list[bool] = []


@contextmanager
def record(root: Path) -> Iterator[list[Operation]]:
    """Record what this process does below a folder, until the block ends."""
    if not _installed:
        sys.addaudithook(_hook)  # for the rest of the process's life
        _installed.append(True)
    recorder, fsync = _Recorder(root.resolve()), os.fsync

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        recorder.sync(descriptor)

    with mock.patch("os.fsync", synced):
        _active.append(recorder)
        try:
            yield recorder.operations
        finally:
            _active.remove(recorder)
            for path in sorted(root.rglob("*")):
                recorder.content(path.relative_to(root).as_posix())


@dataclass(eq=False)
class _File:
    """Content as last synced, and as last seen."""

    synced: bytes = b""
    seen: bytes = b""


@dataclass(eq=False)
class _Link:
    target: bytes


@dataclass(eq=False)
class _Folder:
    """Names that are on disk, and changes since: each a name and what it leads to, or None."""

    names: dict[str, Any] = field(default_factory=dict)
    changes: list[tuple[str, Any]] = field(default_factory=list)

    def now(self) -> dict[str, Any]:
        return _applied(self.names, self.changes)

    def set(self, name: str, node: Any) -> None:
        self.changes.append((name, node))


Tree = dict[str, bytes | tuple[str]]


class Disk:
    """A folder on a strict file system.

    Args:
        root: what is in it before anything happens; all of it is synced.
        never_synced: whether a file is written by others, who do not sync it; by its path.
    """

    def __init__(self, root: Path, never_synced: Callable[[str], bool] = lambda path: False) -> None:
        self._never_synced = never_synced
        inodes: dict[int, Any] = {}
        self._root = self._load(root, inodes) if root.is_dir() else _Folder()

    def _load(self, folder: Path, inodes: dict[int, Any]) -> _Folder:
        names: dict[str, Any] = {}
        for path in folder.iterdir():
            if path.is_symlink():
                names[path.name] = _Link(os.fsencode(path.readlink()))
            elif path.is_dir():
                names[path.name] = self._load(path, inodes)
            else:
                content = path.read_bytes()
                names[path.name] = inodes.setdefault(path.stat().st_ino, _File(content, content))
        return _Folder(names)

    def _at(self, path: str) -> tuple[_Folder | None, str, Any]:
        """The folder, the name, and what it leads to."""
        folder: Any = self._root
        *above, name = path.split("/")
        for part in above:
            folder = folder.now().get(part) if isinstance(folder, _Folder) else None
        return (folder, name, folder.now().get(name)) if isinstance(folder, _Folder) else (None, name, None)

    def do(self, operation: Operation) -> None:
        """Do an operation; like the real one, nothing happens if it is impossible."""
        folder, name, node = self._at(operation.path)
        if operation.name == "sync_folder":
            found = self._root if operation.path in ("", ".") else node
            if isinstance(found, _Folder):
                found.names, found.changes = found.now(), []
            return
        if folder is None or not operation.path:
            return
        if operation.name == "create":
            if node is None:
                folder.set(name, _File())
            elif isinstance(node, _File) and not operation.data:
                pass  # opened again; what it then holds is seen when it is synced or renamed
        elif operation.name in ("mkdir", "symlink"):
            if node is None:
                folder.set(name, _Folder() if operation.name == "mkdir" else _Link(operation.data))
        elif operation.name == "unlink":
            if node is not None:
                folder.set(name, None)
        elif operation.name in ("sync_file", "content"):
            if not isinstance(node, _File):
                # Made by a library, whose calls no hook sees.
                node = _File()
                folder.set(name, node)
            node.seen = operation.data
            if operation.name == "sync_file" and not self._never_synced(operation.path):
                node.synced = operation.data
        elif operation.name in ("rename", "link") and node is not None:
            into, new, there = self._at(operation.other)
            if into is None or (operation.name == "link" and there is not None) or there is node:
                return
            into.set(new, node)
            if operation.name == "rename":
                folder.set(name, None)

    def after(self, variant: str, seed: int = 0) -> Tree:
        """What is there after a power cut: files by path, symbolic links as a tuple, folders as `(“”,)`.

        Args:
            variant: `lost`: nothing that was not synced; `kept`: everything; `names`: all names, but only synced
                content; `zeros`: as `names`, with zeros of the right length; `random`: some of everything.
        """
        tree: Tree = {}
        self._survive(self._root, "", variant, random.Random(seed), {}, tree)
        return tree

    def _survive(
        self, folder: _Folder, at: str, variant: str, rng: random.Random, files: dict[int, bytes], tree: Tree
    ) -> None:
        if variant == "lost":
            names = folder.names
        elif variant == "random":
            # Of each name, all changes up to some point.
            upto = {name: rng.random() for name, _ in folder.changes}
            total = {name: sum(other == name for other, _ in folder.changes) for name in upto}
            done: dict[str, int] = dict.fromkeys(upto, 0)
            kept = []
            for name, node in folder.changes:
                done[name] += 1
                if done[name] <= round(upto[name] * total[name]):
                    kept.append((name, node))
            names = _applied(folder.names, kept)
        else:
            names = folder.now()
        for name in sorted(names):
            node, path = names[name], f"{at}{name}"
            if isinstance(node, _Folder):
                tree[path] = ("",)
                self._survive(node, f"{path}/", variant, rng, files, tree)
            elif isinstance(node, _Link):
                tree[path] = (os.fsdecode(node.target),)
            else:
                if id(node) not in files:
                    files[id(node)] = _content(node, variant, rng)
                tree[path] = files[id(node)]


def _applied(names: dict[str, Any], changes: list[tuple[str, Any]]) -> dict[str, Any]:
    now = dict(names)
    for name, node in changes:
        if node is None:
            now.pop(name, None)
        else:
            now[name] = node
    return now


def _content(node: _File, variant: str, rng: random.Random) -> bytes:
    if node.synced == node.seen or variant == "kept":
        return node.seen
    if variant == "random":
        cut = rng.randrange(len(node.seen) + 1)
        return rng.choice([node.synced, node.seen, node.seen[:cut], bytes(len(node.seen))])
    return bytes(len(node.seen)) if variant == "zeros" else node.synced


def write_tree(tree: Tree, root: Path) -> None:
    """Make a folder that holds a tree."""
    root.mkdir(parents=True)
    for path, content in tree.items():
        if isinstance(content, bytes):
            (root / path).write_bytes(content)
        elif content == ("",):
            (root / path).mkdir()
        else:
            (root / path).symlink_to(content[0])
