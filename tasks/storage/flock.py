"""Lock files with kernel locks (`flock`), which end with the process that holds them, however it ends.

A lock belongs to the open file, so it is a descriptor here. Lock files stay when a lock is released: removing one
while another process waits for it would let two holders in. If someone does remove it, a lock on a file that is no
longer at its path is released and taken again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from tasks.storage.atomic import storage_errors
from tasks.storage.links import refuse_links
from tasks.storage.names import make_folder
from tasks.storage.reading import open_regular

_NO_FLOCK = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}

_logger = logging.getLogger(__name__)


def try_lock(path: Path) -> int | None:
    """Try to lock a file, creating it and its folders; return `None` if another holder has the lock.

    On a file system without locks it succeeds, with a warning.

    Returns:
        The descriptor, for `unlock`.

    Raises:
        StorageError: the file cannot be created or locked.
        ConfigError: `foreign_output`: it is, or is reached through, a link; see `refuse_links`.
    """
    with storage_errors(path, "lock"):
        try:
            return _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB, 0o666, without_locks=True)
        except BlockingIOError:
            return None


@contextlib.contextmanager
def locked(path: Path, mode: int = 0o666) -> Iterator[None]:
    """Hold the lock of a file, creating it and its folders; wait for the current holder.

    Args:
        mode: permissions of a lock file created here.

    Raises:
        StorageError: the file cannot be created or locked.
        ConfigError: `foreign_output`, as `try_lock`.
    """
    with storage_errors(path, "lock"):
        descriptor = _lock(path, fcntl.LOCK_EX, mode)
    try:
        yield
    finally:
        unlock(descriptor)


def is_locked(path: Path) -> bool:
    """Return whether any process holds the lock. The check takes a shared lock for an instant."""
    try:
        descriptor = open_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in _NO_FLOCK:
            raise
    finally:
        os.close(descriptor)
    return False


def sign(descriptor: int) -> None:
    """Write the number of this process into a lock file that it holds, for `signed_by`."""
    # Only a message would miss it.
    with contextlib.suppress(OSError):
        os.pwrite(descriptor, b"%-20d\n" % os.getpid(), 0)


def signed_by(path: Path) -> int | None:
    """Return the number of the process that last signed a lock file, if any did."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = os.pread(descriptor, 20, 0).strip()
        return int(text) if text.isdigit() else None
    except OSError:
        return None
    finally:
        os.close(descriptor)


def unlock(descriptor: int) -> None:
    """Release a lock."""
    # Unlock before closing: a child forked by a library may still have the descriptor open.
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _lock(path: Path, how: int, mode: int, without_locks: bool = False) -> int:
    """Open and lock a file.

    Args:
        without_locks: continue, with a warning, where the file system has none.
    """
    while True:
        refuse_links(path)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        except FileNotFoundError:
            make_folder(path.parent)
            continue
        kept = False
        try:
            fcntl.flock(descriptor, how)
            kept = _same_file(descriptor, path)
        except OSError as error:
            if error.errno not in _NO_FLOCK or not without_locks:
                raise
            _logger.warning(
                "%s: this file system has no locks (%s); runs that start together may do the same work",
                path.parent,
                error.strerror,
            )
            kept = True
        finally:
            if not kept:
                os.close(descriptor)
        if kept:
            return descriptor


def _same_file(descriptor: int, path: Path) -> bool:
    """Return whether the locked file is still the one at its path."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
