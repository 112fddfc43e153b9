"""Create and remove names on the local disk: folders, links, leftovers. For files see `tasks.storage.atomic`.

Links inside an output folder are refused, not followed: see `tasks.storage.links`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from tasks.storage.links import refuse_links


def make_folder(path: Path) -> None:
    """Create a folder and any missing parents, so that they survive a power cut.

    Raises:
        ConfigError: `foreign_output`: a link leads there, see `refuse_links`.
    """
    refuse_links(path)
    missing = list(itertools.takewhile(lambda folder: not folder.is_dir(), (path, *path.parents)))
    path.mkdir(parents=True, exist_ok=True)
    sync_folders(folder.parent for folder in missing)


def sync_folders(folders: Iterable[Path]) -> None:
    """Write the names in folders to disk: syncing a file keeps its content, not the name that leads to it.

    A folder that this user may write but not list, such as a shared one above `output_dir`, cannot be synced.
    """
    for folder in folders:
        try:
            descriptor = os.open(folder, os.O_RDONLY)
        except PermissionError:
            continue
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_path(path: Path) -> None:
    """Remove a file, a link or a whole folder, if it exists; the target of a link stays.

    Raises:
        ConfigError: `foreign_output`: its folder is reached through a link, see `refuse_links`.
    """
    refuse_links(path.parent)
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
    """Set a folder's modification time to now, to mark it as used.

    Raises:
        ConfigError: `foreign_output`: a link leads there, see `refuse_links`.
    """
    refuse_links(path)
    os.utime(path)


def write_to_nowhere(descriptors: Iterable[int]) -> None:
    """Let open files of this process, whose reader has ended, swallow what is still written to them."""
    for descriptor in descriptors:
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


@contextlib.contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """Yield an empty folder for temporary files; remove it with its contents afterwards."""
    with tempfile.TemporaryDirectory(prefix=prefix) as folder:
        yield Path(folder)
