"""Seeing, and dying before, what a process does to files: an audit hook in the process under test.

`install` sits in the process itself, so nothing races: a kill comes exactly before the n-th change of the
output directory, or before the first change that a pattern names. As `sitecustomize` (see `hook_environment`)
it works in the real command line and its worker processes.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workloads import environment

_TARGET = {"os.rename": 1, "os.link": 1, "os.symlink": 1, "os.remove": 0, "os.mkdir": 0, "open": 0}
_WRITING = os.O_WRONLY | os.O_RDWR


def install(root: Path, seen: Callable[[str, str], None]) -> None:
    """Call `seen(event, path)` before every change below `root`, for the rest of the process's life."""
    prefix = f"{root}{os.sep}"

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        position = _TARGET.get(event)
        if position is None:
            return
        target = arguments[position]
        if isinstance(target, int) or (event == "open" and not (arguments[2] or 0) & _WRITING):
            return
        path = os.fsdecode(target)
        if path.startswith(prefix):
            seen(event, path[len(prefix) :])

    sys.addaudithook(hook)


def die() -> None:
    """`kill -9` of the whole process group."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


def install_from_environment() -> None:
    """Do what `hook_environment` was asked for."""
    job = json.loads(os.environ["FILE_EVENTS"])

    def seen(event: str, path: str) -> None:
        line = f"{event} {path}"
        if job["log"] is not None:
            descriptor = os.open(job["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(descriptor, f"{os.getpid()} {line}\n".encode())
            os.close(descriptor)
        if job["die_at"] is not None and re.search(job["die_at"], line):
            die()
        if job["wait_at"] is not None and re.search(job["wait_at"], line):
            while not os.path.exists(job["gate"]):  # noqa: PTH110 - pathlib may be importing this very moment
                time.sleep(0.01)

    install(Path(job["root"]), seen)


def hook_environment(
    folder: Path,
    root: Path,
    *,
    log: Path | None = None,
    die_at: str | None = None,
    wait_at: str | None = None,
) -> dict[str, str]:
    """The environment of a command that runs under the hook.

    Args:
        folder: where the module that Python imports at its start is put; also the place of the file `gate`.
        root: the output directory.
        log: a file that gets a line for every change: process id, event, path.
        die_at: die before the first change that this pattern is found in, as `event path`.
        wait_at: before such a change, wait until `folder` holds the file `gate`.
    """
    folder.mkdir()
    code = "import file_events\n\nfile_events.install_from_environment()\n"
    (folder / "sitecustomize.py").write_text(code)
    job = {"root": root, "log": log, "die_at": die_at, "wait_at": wait_at, "gate": folder / "gate"}
    variables = environment(FILE_EVENTS=json.dumps(job, default=lambda path: path and str(path)))
    variables["PYTHONPATH"] = os.pathsep.join((str(folder), variables["PYTHONPATH"]))
    return variables
