"""Changes of files, counted by an audit hook in the process that makes them; something happens before the n-th."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from file_events import install


def counted(root: Path, log: Path) -> Callable[[], None]:
    """A fault for `Room.run` that disturbs nothing: a byte in `log` for each change or sync."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    return before(root, 1, lambda _: os.write(descriptor, b"."))


def before(root: Path, number: int, act: Callable[[str], object]) -> Callable[[], None]:
    """A fault for `Room.run`: `act(event)` comes before the n-th change or sync, and before each later one."""

    def fault() -> None:
        count = 0
        sync = os.fsync

        def seen(event: str, path: str) -> None:
            nonlocal count
            count += 1
            if count >= number:
                act(f"{event} {path}")

        def fsync(descriptor: int) -> None:
            seen("fsync", str(descriptor))
            sync(descriptor)

        os.fsync = fsync
        install(root, seen)

    return fault
