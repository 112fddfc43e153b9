"""Create and remove names on the local disk: folders, links, leftovers. For files see `tasks.storage.atomic`."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


def make_folder(path: Path) -> None:
    """Create a folder and any missing parents."""
    path.mkdir(parents=True, exist_ok=True)


def remove_path(path: Path) -> None:
    """Remove a file, a link or a whole folder, if it exists; the target of a link stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def link_target(path: Path) -> str | None:
    """Return the target of a symbolic link as written; `None` if this is not one."""
    return str(path.readlink()) if path.is_symlink() else None


def make_link(path: Path, target: Path) -> None:
    """Create a symbolic link to `target`; to replace one, see `tasks.storage.atomic.swap_symlink`."""
    path.symlink_to(target)


def touch_folder(path: Path) -> None:
    """Set a folder's modification time to now, to mark it as used."""
    os.utime(path)


@contextlib.contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """Yield an empty folder for temporary files; remove it with its contents afterwards."""
    with tempfile.TemporaryDirectory(prefix=prefix) as folder:
        yield Path(folder)
