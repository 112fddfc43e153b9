"""Seeing, and dying before, what a process does to files: an audit hook in the process under test.

`install` sits in the process itself, so nothing races: a kill comes exactly before the n-th change of the
output directory, or before the first change that a pattern names. As `sitecustomize` (see `hook_environment`)
it works in the real command line and its worker processes.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_TARGET = {"os.rename": 1, "os.link": 1, "os.symlink": 1, "os.remove": 0, "os.mkdir": 0, "open": 0}
_WRITING = os.O_WRONLY | os.O_RDWR


def install(root: Path, seen: Callable[[str, str], None]) -> None:
    """Call `seen(event, path)` before every change below `root`, for the rest of the process's life."""
    prefix = f"{root}{os.sep}"
    busy = False

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal busy
        position = _TARGET.get(event)
        if position is None or busy:
            return
        target = arguments[position]
        if isinstance(target, int) or (event == "open" and not (arguments[2] or 0) & _WRITING):
            return
        path = os.fsdecode(target)
        if path.startswith(prefix):
            busy = True
            try:
                seen(event, path[len(prefix) :])
            finally:
                busy = False

    sys.addaudithook(hook)


def die() -> None:
    """`kill -9` of the whole process group."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


def install_from_environment() -> None:
    """`FILE_EVENTS_ROOT`: the output directory; `_LOG`: a file to append events to; `_DIE`: pattern to die at."""
    root = Path(os.environ["FILE_EVENTS_ROOT"])
    log, pattern = os.environ.get("FILE_EVENTS_LOG"), os.environ.get("FILE_EVENTS_DIE")

    def seen(event: str, path: str) -> None:
        line = f"{event} {path}"
        if log is not None:
            descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(descriptor, f"{line}\n".encode())
            os.close(descriptor)
        if pattern is not None and re.search(pattern, line):
            die()

    install(root, seen)


def hook_environment(
    folder: Path, root: Path, log: Path | None = None, die_at: str | None = None
) -> dict[str, str]:
    """Variables that put the hook into a command started with `workloads.environment`."""
    folder.mkdir(exist_ok=True)
    code = "import file_events\n\nfile_events.install_from_environment()\n"
    (folder / "sitecustomize.py").write_text(code)
    variables = {"FILE_EVENTS_ROOT": str(root)}
    if log is not None:
        variables["FILE_EVENTS_LOG"] = str(log)
    if die_at is not None:
        variables["FILE_EVENTS_DIE"] = die_at
    return variables
