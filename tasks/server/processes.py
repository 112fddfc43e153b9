"""Manage background processes: start them apart from the terminal, recognise them later, end them reliably.

A process number alone is not an identity: numbers are reused. A process is identified by its number and the time it
started; its descendants, by a variable in its environment that every process below it inherits.
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

# Variable with the state folder, in the environment of everything `up` starts and of everything below it.
MARK = "GRISTMILL_LOCAL_SERVER"
TERM_S = 5.0
_POLL_S = 0.05


@dataclass(frozen=True)
class Started:
    """A process, identified for certain.

    Attributes:
        pid: its number, and that of its process group.
        started: when it started, in the system's own form; only equality counts.
    """

    pid: int
    started: str

    @property
    def running(self) -> bool:
        """Whether the process is still running."""
        return started(self.pid) == self.started


def started(pid: int) -> str | None:
    """Return when a process started; `None` if it has ended, even if its exit code has not been read.

    The time counts from the start of the system, as its clock may be set meanwhile, with the system's own id for that
    start, if it has one: numbers are reused after a restart.
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
    """Return the system's id for its current boot; only Linux has one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "-"


def private_file(path: Path) -> BinaryIO:
    """Open an empty file for writing that only the user can read."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


def start_apart(
    command: Sequence[str], environ: Mapping[str, str], log: Path, cwd: Path, keep_open: Collection[int] = ()
) -> Started:
    """Start a command in a session of its own, so that it survives the terminal.

    Args:
        log: receives its output; emptied first, readable only by the user.
        keep_open: descriptors to inherit.
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


# Kept so that the interpreter neither warns about them nor leaves their exit codes unread.
_children: list[subprocess.Popen[bytes]] = []


def marked(mark: str) -> list[Started]:
    """Find the running processes whose environment carries the mark."""
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
    """End processes and their groups: TERM, up to `term_s` seconds, then KILL; return how many had to be killed."""
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
