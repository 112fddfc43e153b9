"""Storage and limits that fail in mid-work: a full or read-only disk, errors of single calls, limits, clock jumps.

Then the cause is gone, and the same command must end with the bytes of an undisturbed run.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from torture.events import before
from torture.kit import Work
from torture.room import Failed, Room

_ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EACCES)
_YEAR_S = 365 * 86_400


def attempt(room: Room) -> None:
    """Each kind of fault in turn, over each flow in turn."""
    work = room.kit.work(room.number)
    fault = _FAULTS[room.number // len(room.kit.works) % len(_FAULTS)]
    room.what = fault.__doc__ or ""
    fault(room, work)


def _failing_call(room: Room, work: Work) -> None:
    """a change or sync of a file fails"""
    out = room.folder / "out"
    number, moment = room.rng.choice(_ERRORS), room.rng.randint(1, work.changes)
    once = room.rng.random() < 0.5
    room.notes.append(f"{errno.errorcode[number]} at {moment}, {'once' if once else 'from then on'}")
    failed = False

    def fail(event: str) -> None:
        nonlocal failed
        if not (once and failed):
            failed = True
            raise OSError(number, os.strerror(number), event)

    _try(room, work, out, before(out, moment, fail))
    work.finish(room, out)


def _full_disk(room: Room, work: Work) -> None:
    """the disk is full"""
    used = sum(path.lstat().st_size for path in work.base.rglob("*") if path.is_file())
    with _disk(room.folder / "disk", int(used * room.rng.uniform(0.02, 0.95)) + 8192) as disk:
        _try(room, work, disk / "out", None)
        _remount(disk, "size=256m")
        work.finish(room, disk / "out")


def _read_only_disk(room: Room, work: Work) -> None:
    """the disk becomes read-only"""
    with _disk(room.folder / "disk", 256 << 20) as disk:
        out = disk / "out"
        if room.rng.random() < 0.5:
            work.finish(room, out, changed=True)
        moment = room.rng.randint(1, work.changes)
        done = False

        def protect(event: str) -> None:
            nonlocal done
            if not done:
                done = True
                # Files that are open for writing prevent it.
                with contextlib.suppress(OSError):
                    _remount(disk, "ro")

        _remount(disk, "ro" if room.rng.random() < 0.3 else "rw")
        _try(room, work, out, before(out, moment, protect))
        _remount(disk, "rw")
        work.finish(room, out)


def _few_files(room: Room, work: Work) -> None:
    """few files may be open"""
    number = room.rng.randint(0, 24)

    def limit() -> None:
        now = max(int(name) for name in os.listdir("/proc/self/fd"))  # noqa: PTH208
        resource.setrlimit(resource.RLIMIT_NOFILE, (now + number, now + number))

    _try(room, work, room.folder / "out", limit)
    work.finish(room, room.folder / "out")


def _small_files(room: Room, work: Work) -> None:
    """files may not grow"""
    largest = max(path.lstat().st_size for path in work.base.rglob("*") if path.is_file())
    number = int(largest * room.rng.uniform(0, 1.05))
    # What the command says goes to a file as well.
    limit = max(number, 4096)
    _try(room, work, room.folder / "out", lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    work.finish(room, room.folder / "out")


def _little_memory(room: Room, work: Work) -> None:
    """memory is limited"""
    which = room.rng.choice((resource.RLIMIT_AS, resource.RLIMIT_DATA))
    grow = room.rng.randint(4, 400) << 20

    def limit() -> None:
        pages = Path("/proc/self/statm").read_text().split()
        now = int(pages[0 if which == resource.RLIMIT_AS else 5]) * resource.getpagesize()
        resource.setrlimit(which, (now + grow, now + grow))

    room.notes.append(f"{'AS' if which == resource.RLIMIT_AS else 'DATA'} + {grow >> 20} MB")
    _try(room, work, room.folder / "out", limit)
    work.finish(room, room.folder / "out")


def _clock(room: Room, work: Work) -> None:
    """the clock jumps"""
    out = room.folder / "out"
    jump = room.rng.choice((-40 * _YEAR_S, -_YEAR_S, -3600, 3600, _YEAR_S, 60 * _YEAR_S))
    moment = room.rng.randint(1, work.changes)
    if room.rng.random() < 0.5:
        work.finish(room, out, changed=True)
        for path in out.rglob("*"):
            os.utime(path, (time.time() + jump, time.time() + jump), follow_symlinks=False)
    real, real_ns, jumped = time.time, time.time_ns, False

    def jump_now(event: str) -> None:
        nonlocal jumped
        if not jumped:
            jumped = True
            time.time = lambda: real() + jump
            time.time_ns = lambda: real_ns() + jump * 10**9

    ended = _try(room, work, out, before(out, moment, jump_now))
    if not ended:
        raise Failed("clock", "the clock alone ended the run")
    room.judged(room.run("prune", out))
    work.finish(room, out)


_FAULTS = (
    _failing_call,
    _full_disk,
    _failing_call,
    _few_files,
    _small_files,
    _read_only_disk,
    _little_memory,
    _clock,
)


def _try(room: Room, work: Work, out: Path, fault: Callable[[], None] | None) -> bool:
    """Run under a fault: well, or to a coded error, and what is published is whole. Returns whether it went well."""
    ended = room.judged(work.run(room, out, fault=fault))
    room.done += 1
    room.notes.append(ended.said)
    known = work.check_view(out)
    if ended.ok and (known is None or (out / "latest").resolve().name != list(work.known)[-1]):
        raise Failed("silent success", "exit 0 without this run as the latest")
    return ended.ok


@contextlib.contextmanager
def _disk(folder: Path, size: int) -> Iterator[Path]:
    """A small disk; needs to be root in a namespace that may mount."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def _remount(folder: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", folder], check=False, stderr=subprocess.DEVNULL)
