"""Locks: held by one, given back by death, and only ever on the file that is at its path."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.errors import StorageError
from tasks.storage import flock
from tasks.storage.flock import is_locked, locked, try_lock, unlock

HOLD = "import sys, time; from pathlib import Path; from tasks.storage.flock import try_lock;"
HOLD += "print(try_lock(Path(sys.argv[1])), flush=True); time.sleep(60)"


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "below" / "here" / ".lock"
    assert not is_locked(path)
    first = try_lock(path)
    assert first is not None
    assert is_locked(path) and try_lock(path) is None
    unlock(first)
    assert not is_locked(path)
    second = try_lock(path)
    assert second is not None
    unlock(second)


def test_waiting_ends_when_the_holder_is_killed(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        threading.Timer(0.2, other.kill).start()
        started = time.monotonic()
        with locked(path):
            assert is_locked(path)
            assert 0.1 < time.monotonic() - started < 30
    assert not is_locked(path)


def test_a_lock_file_is_made_with_the_given_mode(tmp_path: Path) -> None:
    with locked(tmp_path / ".lock", 0o600):
        assert stat.S_IMODE((tmp_path / ".lock").stat().st_mode) == 0o600


@pytest.mark.parametrize("how", ["removed", "replaced"])
@pytest.mark.parametrize("take", [try_lock, lambda path: locked(path)], ids=["try", "wait"])
def test_a_lock_on_a_file_that_is_gone_is_taken_anew(
    tmp_path: Path, how: str, take: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / ".lock"
    real, calls = fcntl.flock, []

    def interfere(descriptor: int, operation: int) -> None:
        real(descriptor, operation)
        calls.append(os.fstat(descriptor).st_ino)
        if len(calls) == 1:
            # Somebody removes the folder of the lock between its opening and its locking.
            if how == "replaced":
                (tmp_path / "other").touch()
                (tmp_path / "other").replace(path)
            else:
                path.unlink()

    monkeypatch.setattr(fcntl, "flock", interfere)
    if take is try_lock:
        descriptor = try_lock(path)
        assert descriptor is not None
        assert os.path.samestat(os.fstat(descriptor), path.stat())
        unlock(descriptor)
    else:
        with locked(path):
            assert path.stat().st_ino == calls[1]
    assert len(calls) >= 2


def test_a_file_system_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    descriptor = try_lock(tmp_path / ".lock")
    assert descriptor is not None and "has no locks" in caplog.text
    assert not is_locked(tmp_path / ".lock")
    unlock(descriptor)
    with pytest.raises(StorageError), locked(tmp_path / ".lock"):
        pass
    # Nothing stays open.
    assert not [name for name in os.listdir("/proc/self/fd") if _leads_to(name, tmp_path)]  # noqa: PTH208


def _leads_to(descriptor: str, folder: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(folder))  # noqa: PTH115
    except OSError:
        return False


def test_a_lock_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / ".lock", tmp_path):
        with pytest.raises(StorageError, match="cannot lock"):
            try_lock(path)
    assert flock._same_file(os.open(tmp_path, os.O_RDONLY), tmp_path / "gone") is False
