"""Processes in the background: started apart from the terminal, recognised later, ended for certain.

A process number alone is no identity: numbers are used again. A process is known by its number and the moment it
started; what it left behind, by a variable in its environment that every process below it inherits.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import psutil

# In the environment of everything `up` starts, and so of everything below it: the state folder.
MARK = "GRISTMILL_LOCAL_SERVER"
TERM_S = 5.0
_POLL_S = 0.05


@dataclass(frozen=True)
class Started:
    """A process.

    Attributes:
        pid: its number, and that of its process group.
        started: when it started, in the system's own terms: only equality counts.
    """

    pid: int
    started: str

    @property
    def running(self) -> bool:
        return started(self.pid) == self.started


def started(pid: int) -> str | None:
    """When a process started; `None` if it has ended, also when nobody has asked for its exit code yet.

    Counted from the start of the system, whose clock may be set meanwhile, and with the system's own name for that
    start, where it has one: numbers are used again after it.
    """
    try:
        process = psutil.Process(pid)
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return None
        return f"{_boot()} {process.create_time() - psutil.boot_time():.2f}"
    except psutil.Error:
        return None


@functools.cache
def _boot() -> str:
    """The system's name for its start; on Linux there is one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "-"


def private_file(path: Path) -> BinaryIO:
    """A file opened for writing, empty, that only the user can read."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


def start_apart(
    command: Sequence[str], environ: Mapping[str, str], log: Path, cwd: Path, keep_open: Collection[int] = ()
) -> Started:
    """Start a command in a session of its own, so that the terminal's end does not reach it.

    Args:
        log: takes what it prints; emptied first, readable by the user alone.
        keep_open: descriptors it inherits.
    """
    with private_file(log) as output:
        process = subprocess.Popen(
            command,
            env=dict(environ),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=tuple(keep_open),
        )
    _children.append(process)
    return Started(process.pid, started(process.pid) or "")


# Kept so that the interpreter neither warns of them nor leaves their exit codes unread.
_children: list[subprocess.Popen[bytes]] = []


def marked(mark: str) -> list[Started]:
    """The running processes whose environment bears the mark."""
    found = []
    for process in psutil.process_iter():
        try:
            moment = started(process.pid)
            if moment and process.environ().get(MARK) == mark and process.pid != os.getpid():
                found.append(Started(process.pid, moment))
        except (psutil.Error, OSError):
            continue
    return found


def end(processes: Collection[Started], term_s: float = TERM_S) -> int:
    """End processes and their groups: TERM, up to `term_s` seconds, then KILL; returns how many had to be killed."""
    _signal(processes, signal.SIGTERM)
    deadline = time.monotonic() + term_s
    while any(process.running for process in processes) and time.monotonic() < deadline:
        _reap()
        time.sleep(_POLL_S)
    left = [process for process in processes if process.running]
    _signal(left, signal.SIGKILL)
    while any(process.running for process in left):
        _reap()
        time.sleep(_POLL_S)
    return len(left)


def _signal(processes: Collection[Started], number: signal.Signals) -> None:
    for process in processes:
        if not process.running:
            continue
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(process.pid) == process.pid:
                os.killpg(process.pid, number)
            else:
                os.kill(process.pid, number)


def _reap() -> None:
    _children[:] = [child for child in _children if child.poll() is None]
