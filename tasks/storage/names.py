"""Names of the local disk, made and removed: folders, links, leftovers. Files appear by `tasks.storage.atomic`."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


def make_folder(path: Path) -> None:
    """Make a folder and those above it, as far as they are missing."""
    path.mkdir(parents=True, exist_ok=True)


def remove_path(path: Path) -> None:
    """Remove a file, a link or a whole folder, if it is there; what a link leads to stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def link_target(path: Path) -> str | None:
    """Where a symbolic link leads, as it says; `None` if this is none."""
    return str(path.readlink()) if path.is_symlink() else None


def make_link(path: Path, target: Path) -> None:
    """A new symbolic link to `target`; to replace one, see `tasks.storage.atomic.swap_symlink`."""
    path.symlink_to(target)


def touch_folder(path: Path) -> None:
    """Note on a folder that it was used now."""
    os.utime(path)


@contextlib.contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """An empty folder for temporary files, removed with all that is in it."""
    with tempfile.TemporaryDirectory(prefix=prefix) as folder:
        yield Path(folder)
