"""Allow one worker at a time for each receipt, with kernel locks that end with their process.

Prefect's own `FileSystemLockManager` marks a lock by the existence of a file, so it blocks forever after a
`kill -9`. `flock` belongs to the open file: the kernel drops it whenever the process ends, however it ends.

- One lock file per key, `stages/{stage}/receipts/.{name}.lock`. The files stay: removing a lock file while
  another process waits for it would let two holders in. (`prune` may remove whole stages; a lock on a file
  that is no longer at its path is released and taken again.)
- A lock file has the number of the process that last took it, so that the work of a killed one can be named.
- All managers of a process share one table of held locks, as Prefect copies and pickles managers.
- Waiting polls (5 ms, then up to 100 ms): a blocking `flock` has no timeout and cannot be interrupted in a
  worker thread.
- Across hosts, and on file systems without `flock`, two runs may do the same work; their outputs are the
  same bytes and appear atomically, so this only costs time.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Self

from prefect.locking.protocol import LockManager

from schemas.errors import IntegrityError
from tasks.storage.flock import is_locked, sign, signed_by, try_lock, unlock

_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.1


@dataclass(frozen=True)
class _Actor:
    """The taker of a lock: a thread, and in an event loop the asyncio task within it."""

    thread: threading.Thread
    task: asyncio.Task[Any] | None

    @classmethod
    def current(cls) -> _Actor:
        try:
            task = asyncio.current_task()
        except RuntimeError:
            task = None
        return cls(threading.current_thread(), task)

    @property
    def gone(self) -> bool:
        return not self.thread.is_alive() or (self.task is not None and self.task.done())


@dataclass
class _Held:
    descriptor: int
    holder: str
    actor: _Actor
    expiry: threading.Timer | None = None


# Guards the table below; held for at most a few system calls, never while waiting.
_table = threading.Lock()
_held: dict[Path, _Held] = {}


class FlockManager(LockManager):
    """Prefect's lock protocol on `flock`.

    Re-entry never deadlocks. A holder that asks again already has the lock. Prefect names every transaction
    anew and, when a cached result fails to load, forgets to release its lock; so an actor (thread or asyncio
    task) that asks for a lock it already holds, or one whose actor has ended, takes it over.

    Args:
        root: the output directory; keys are paths below it.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).resolve()

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (str(self.root),))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def acquire_lock(
        self, key: str, holder: str, acquire_timeout: float | None = None, hold_timeout: float | None = None
    ) -> bool:
        """Take the lock; return False if that takes longer than `acquire_timeout` seconds (0: do not wait).

        Raises:
            IntegrityError: code `bad_key`; the key leads outside the root.
            StorageError: the lock file cannot be created or locked.
        """
        if self._try(key, holder, hold_timeout):
            return True
        for pause in _pauses(acquire_timeout):
            time.sleep(pause)
            if self._try(key, holder, hold_timeout):
                return True
        return False

    async def aacquire_lock(
        self, key: str, holder: str, acquire_timeout: float | None = None, hold_timeout: float | None = None
    ) -> bool:
        """Do what `acquire_lock` does, without blocking the event loop while it waits."""
        if self._try(key, holder, hold_timeout):
            return True
        for pause in _pauses(acquire_timeout):
            await asyncio.sleep(pause)
            if self._try(key, holder, hold_timeout):
                return True
        return False

    def release_lock(self, key: str, holder: str) -> None:
        """Release the lock.

        Raises:
            ValueError: `holder` does not hold it.
        """
        path = self._path(key)
        with _table:
            held = _held.get(path)
            if held is None or held.holder != holder:
                raise ValueError(f"no lock held by {holder} for {key}")
            _drop(path, held)

    def is_locked(self, key: str) -> bool:
        """Return whether anyone, in any process, holds the lock.

        The check takes a shared lock for an instant; an `acquire_lock` that does not wait may fail because of it.
        """
        path = self._path(key)
        with _table:
            if path in _held:
                return True
        return is_locked(path)

    def last_holder(self, key: str) -> int | None:
        """Return the number of the process that last held the lock, even if it has ended."""
        return signed_by(self._path(key))

    def is_lock_holder(self, key: str, holder: str) -> bool:
        """Return whether `holder` holds the lock, in this process."""
        with _table:
            held = _held.get(self._path(key))
            return held is not None and held.holder == holder

    def wait_for_lock(self, key: str, timeout: float | None = None) -> bool:
        """Wait until nobody else holds the lock; return False if `timeout` seconds were not enough."""
        if self._free(key):
            return True
        for pause in _pauses(timeout):
            time.sleep(pause)
            if self._free(key):
                return True
        return False

    async def await_for_lock(self, key: str, timeout: float | None = None) -> bool:
        """Do what `wait_for_lock` does, without blocking the event loop while it waits."""
        if self._free(key):
            return True
        for pause in _pauses(timeout):
            await asyncio.sleep(pause)
            if self._free(key):
                return True
        return False

    def _path(self, key: str) -> Path:
        relative = PurePosixPath(key)
        if relative.is_absolute() or ".." in relative.parts or not relative.name:
            raise IntegrityError(f"the lock key {key!r} leads outside the output directory", code="bad_key")
        return self.root / relative.parent / f".{relative.name}.lock"

    def _free(self, key: str) -> bool:
        with _table:
            held = _held.get(self._path(key))
            if held is not None and held.actor == _Actor.current():
                return True
        return not self.is_locked(key)

    def _try(self, key: str, holder: str, hold_timeout: float | None) -> bool:
        path = self._path(key)
        actor = _Actor.current()
        with _table:
            held = _held.get(path)
            if held is None:
                descriptor = try_lock(path)
                if descriptor is None:
                    return False
                sign(descriptor)
                held = _held[path] = _Held(descriptor, holder, actor)
            elif held.holder != holder and held.actor != actor and not held.actor.gone:
                return False
            held.holder, held.actor = holder, actor
            if held.expiry is not None:
                held.expiry.cancel()
                held.expiry = None
            if hold_timeout is not None:
                held.expiry = threading.Timer(hold_timeout, _expire, (path, held, holder))
                held.expiry.daemon = True
                held.expiry.start()
        return True


def _pauses(timeout: float | None) -> Iterator[float]:
    """Yield how long to sleep between tries, until `timeout` seconds have passed."""
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = _FIRST_PAUSE_S
    while True:
        left = pause if deadline is None else deadline - time.monotonic()
        if left <= 0:
            return
        yield min(pause, left)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _drop(path: Path, held: _Held) -> None:
    """Release a lock; the caller holds the table's guard."""
    if held.expiry is not None:
        held.expiry.cancel()
    del _held[path]
    unlock(held.descriptor)


def _expire(path: Path, held: _Held, holder: str) -> None:
    with _table:
        if _held.get(path) is held and held.holder == holder:
            _drop(path, held)


def _forget() -> None:
    """Drop all locks in a forked child: they belong to the parent, whose death open descriptors would outlast."""
    global _table
    _table = threading.Lock()
    for held in _held.values():
        os.close(held.descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_forget)
