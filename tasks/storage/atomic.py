"""Write files that appear whole or not at all: temporary name in the same folder, fsync, `os.replace`.

Temporary names are `.tmp-{name}.{host}.{pid}-{thread}`, so two threads never share one, and a leftover of a killed
process on this host is recognised by its process number and removed by the next writer of the same name.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, TypeVar

from schemas.errors import ConfigError, StorageError, remedy
from schemas.run import FileRecord
from tasks.storage.links import refuse_links
from tasks.storage.names import make_folder, remove_path, sync_folders

T = TypeVar("T")

TEMP_PREFIX = ".tmp-"
_HOST = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())


@contextlib.contextmanager
def storage_errors(path: Path, doing: str = "write") -> Iterator[None]:
    """Turn an `OSError` on the output side into one readable `StorageError`.

    Args:
        doing: what failed, as a verb, for the message.

    Raises:
        StorageError: the block raised an `OSError`; code `not_a_file` if a folder is in the way of a file.
    """
    try:
        yield
    except IsADirectoryError as error:
        raise StorageError(
            f"cannot {doing}: a folder is where this file belongs; move it away, then run again",
            code="not_a_file",
            where=str(path),
        ) from error
    except OSError as error:
        raise StorageError(
            f"cannot {doing}: {remedy(error, 'check space and permissions of the output folder')}",
            where=str(path),
        ) from error


class AtomicFile:
    """A file being written: hashed while written, renamed into place by `commit`.

    Usable wherever a writable binary file is (pyarrow's `PythonFile` included). Leaving the `with` block by
    an exception removes the temporary file.

    Raises:
        StorageError: creating, writing, syncing or renaming failed; `not_a_file`: a folder has its name.
        ConfigError: `foreign_output`: its folder is reached through a link, see `refuse_links`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes = 0
        self._sha256 = hashlib.sha256()
        self._temporary = _temporary(path)
        with storage_errors(path):
            make_folder(path.parent)
            refuse_folder(path)
            _remove_leftovers(path)
            self._file: BinaryIO = _create(self._temporary, lambda path: path.open("xb"))
        # Not a property: Arrow asks for it, and takes an interrupt that comes while Python code answers for a yes.
        self.closed = False

    def write(self, data: Any) -> int:
        """Append a bytes-like object; return its size in bytes."""
        view = memoryview(data).cast("B")
        with storage_errors(self.path):
            self._file.write(view)
        self._sha256.update(view)
        self.bytes += view.nbytes
        return view.nbytes

    def flush(self) -> None:
        """Pass buffered data to the system."""
        with storage_errors(self.path):
            self._file.flush()

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self.bytes

    def close(self) -> None:
        """Do nothing; `commit` closes the file."""
        # pyarrow closes the file it writes to; keep it open until commit so that it can be synced.

    def commit(self) -> None:
        """Sync the data, then make the file visible under its final name."""
        try:
            with storage_errors(self.path):
                refuse_links(self.path.parent)
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
                self.closed = True
                self._temporary.replace(self.path)
                sync_folders([self.path.parent])
        except BaseException:
            # A full disk often becomes apparent only here, when the buffer is flushed.
            self.discard()
            raise

    def measure(self) -> None:
        """Take size and digest from the temporary file, which another process wrote."""
        with storage_errors(self.path, "read"), self._temporary.open("rb") as file:
            self._sha256 = hashlib.file_digest(file, "sha256")
            self.bytes = file.tell()

    def sha256(self) -> str:
        """Return the digest of what was written so far."""
        return self._sha256.hexdigest()

    def record(self, root: Path) -> FileRecord:
        """Return size and digest of what was written, with the path relative to `root`."""
        relative = self.path.relative_to(root).as_posix()
        return FileRecord(path=relative, bytes=self.bytes, sha256=self.sha256())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self.discard()

    def discard(self) -> None:
        """Remove what was written, if it was not committed."""
        with contextlib.suppress(OSError):
            self._file.close()
        self.closed = True
        with contextlib.suppress(OSError, ConfigError):
            remove_path(self._temporary)


class AtomicFolder:
    """A folder being written: its files go to a temporary folder that `commit` renames into place.

    An existing folder is replaced: a kill at that moment leaves none, never a mixture. Leaving the
    `with` block by an exception removes the temporary folder.

    Raises:
        StorageError: creating, syncing or renaming failed.
        ConfigError: `foreign_output`, as `AtomicFile`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._temporary = _temporary(path)
        self._files: dict[str, AtomicFile] = {}
        with storage_errors(path):
            make_folder(path.parent)
            _remove_leftovers(path)
            remove_path(self._temporary)
            self._temporary.mkdir()

    def new_file(self, name: str) -> AtomicFile:
        """Open a file of the folder; write and commit it before the folder."""
        self._files[name] = AtomicFile(self._temporary / name)
        return self._files[name]

    def place(self, name: str) -> Path:
        """Return the path to write a file to by other means before `commit`; it has no record."""
        return self._temporary / name

    def commit(self) -> None:
        """Make the folder visible under its final name."""
        with storage_errors(self.path):
            refuse_links(self.path.parent)
            while not self._moved():
                # Another process has put its own there since.
                pass
            sync_folders([self.path.parent])
            remove_path(self._old)

    def _moved(self) -> bool:
        """Move what has the name out of the way, and take it; return whether nobody took it in between."""
        remove_path(self._old)
        with contextlib.suppress(FileNotFoundError):
            self.path.rename(self._old)
        try:
            self._temporary.rename(self.path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            return False
        return True

    @property
    def _old(self) -> Path:
        return self._temporary.with_name(f"{self._temporary.name}-old")

    def records(self, root: Path) -> tuple[FileRecord, ...]:
        """Return size and digest of every file, with paths relative to `root`, in the order they were opened."""
        folder = self.path.relative_to(root).as_posix()
        return tuple(
            file.record(self._temporary).model_copy(update={"path": f"{folder}/{name}"})
            for name, file in self._files.items()
        )

    def discard(self) -> None:
        """Remove what was written."""
        for file in self._files.values():
            file.discard()
        with contextlib.suppress(OSError, ConfigError):
            remove_path(self._temporary)


def write_file(path: Path, data: bytes) -> AtomicFile:
    """Write `data` to `path` atomically; return the file, for its record."""
    with AtomicFile(path) as file:
        file.write(data)
    return file


def link_file(source: Path, target: Path) -> None:
    """Give `source` a second name: a hard link, or an atomic copy where links are impossible.

    The name survives a power cut once its folder is synced, see `sync_folders`.

    Raises:
        StorageError: it cannot be linked or copied; `not_a_file`: a folder has the name of the target.
        ConfigError: `foreign_output`: the source is, or either is reached through, a link; see `refuse_links`.
    """
    with storage_errors(target):
        refuse_links(source)
        make_folder(target.parent)
        try:
            # A new name appears in one step; only taking over a name needs a temporary one.
            target.hardlink_to(source)
        except FileExistsError:
            refuse_folder(target)
            _take_over(source, target)
        except OSError:
            _copy(source, target)


def _take_over(source: Path, target: Path) -> None:
    temporary = _temporary(target)
    try:
        _create(temporary, lambda path: path.hardlink_to(source))
    except OSError:
        _copy(source, target)
    else:
        temporary.replace(target)
        # Renaming between two names of one inode is a no-op, which leaves the temporary name behind.
        temporary.unlink(missing_ok=True)


def swap_symlink(link: Path, target: str, sync: bool = True) -> None:
    """Point `link` at `target` in one step, creating missing folders; readers see the old target or the new one.

    Args:
        sync: return only when it would survive a power cut; without it, sync the folder afterwards.

    Raises:
        StorageError: the link cannot be made; `not_a_file`: a folder has its name.
        ConfigError: `foreign_output`: its folder is reached through a link, see `refuse_links`.
    """
    with storage_errors(link):
        make_folder(link.parent)
        refuse_folder(link)
        _remove_leftovers(link)
        temporary = _temporary(link)
        _create(temporary, lambda path: path.symlink_to(target))
        temporary.replace(link)
        if sync:
            sync_folders([link.parent])


def _temporary(path: Path) -> Path:
    return path.with_name(f"{TEMP_PREFIX}{path.name}.{_HOST}.{os.getpid()}-{threading.get_ident()}")


def refuse_folder(path: Path) -> None:
    """Raise before any work what renaming a file over a folder would raise after it.

    Raises:
        IsADirectoryError: see `storage_errors`.
    """
    if path.is_dir() and not path.is_symlink():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))


def _create(path: Path, make: Callable[[Path], T]) -> T:
    """Make a file or link that must not exist yet; what has its name is removed, never written through."""
    try:
        return make(path)
    except FileExistsError:
        remove_path(path)
        return make(path)


def _copy(source: Path, target: Path, block_bytes: int = 1 << 22) -> None:
    with AtomicFile(target) as out, source.open("rb") as file:
        while block := file.read(block_bytes):
            out.write(block)


def _remove_leftovers(path: Path) -> None:
    """Remove temporary files of `path` that dead processes of this host left behind."""
    for leftover in path.parent.glob(f"{TEMP_PREFIX}{path.name}.{_HOST}.*"):
        pid = leftover.name.rpartition(".")[2].partition("-")[0]
        if pid.isdigit() and int(pid) != os.getpid() and not _alive(int(pid)):
            remove_path(leftover)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
