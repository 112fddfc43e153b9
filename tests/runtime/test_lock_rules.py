"""Locks rule by rule, in one process: a lock of the kernel belongs to an open file, so another one stands for
another process."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import IntegrityError, StorageError
from tasks.runtime.locks import FlockManager

KEY = "stages/x/receipts/pack-000003.json"
LOCK_FILE = "stages/x/receipts/.pack-000003.json.lock"


@pytest.fixture
def locks(tmp_path: Path) -> FlockManager:
    (tmp_path / LOCK_FILE).parent.mkdir(parents=True)
    return FlockManager(tmp_path)


@pytest.fixture
def other_thread() -> Iterator[ThreadPoolExecutor]:
    """One thread that stays alive during the test."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


@contextmanager
def held(path: Path, operation: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Somebody else holds the lock of a file."""
    with path.open("ab") as file:
        fcntl.flock(file, operation)
        yield


def is_free(path: Path) -> bool:
    """Whether somebody else could have the lock of a file, by the kernel."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are enough


def test_the_kernel_knows_who_holds_a_lock(locks: FlockManager, tmp_path: Path) -> None:
    path = tmp_path / LOCK_FILE
    assert locks.acquire_lock(KEY, "a")
    assert not is_free(path)
    locks.release_lock(KEY, "a")
    assert is_free(path)
    assert locks.root == tmp_path.resolve()


def test_what_somebody_else_holds_is_not_taken(locks: FlockManager, tmp_path: Path) -> None:
    path = tmp_path / LOCK_FILE
    before = descriptors()
    with held(path):
        assert locks.is_locked(KEY)
        assert not locks.acquire_lock(KEY, "a", 0)
        assert not locks.is_lock_holder(KEY, "a")
        assert not locks.wait_for_lock(KEY, 0)
        assert not asyncio.run(locks.aacquire_lock(KEY, "a", 0.02))
        assert not asyncio.run(locks.await_for_lock(KEY, 0.02))
    assert not locks.is_locked(KEY)
    assert locks.wait_for_lock(KEY, 0)
    assert locks.acquire_lock(KEY, "a", 0)
    locks.release_lock(KEY, "a")
    # Neither looking nor failing leaves a file open.
    assert descriptors() == before


def test_looking_is_shared(locks: FlockManager, tmp_path: Path) -> None:
    with held(tmp_path / LOCK_FILE, fcntl.LOCK_SH):
        assert not locks.is_locked(KEY)
        assert not locks.acquire_lock(KEY, "a", 0)


def test_a_lock_that_nobody_ever_took_is_free(tmp_path: Path) -> None:
    locks = FlockManager(tmp_path)
    assert not locks.is_locked(KEY)
    assert locks.wait_for_lock(KEY, 0)
    assert asyncio.run(locks.await_for_lock(KEY, 0))
    # To look makes nothing.
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "stages").write_bytes(b"in the way")
    assert not locks.is_locked(KEY)


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("times", [1, 3])
def test_a_lock_file_that_was_removed_before_it_was_locked_does_not_count(
    locks: FlockManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool, times: int
) -> None:
    """`prune` removes a stage between the opening of its lock file and the lock on it."""
    path, flock, seen = tmp_path / LOCK_FILE, fcntl.flock, []
    before = descriptors()

    def remove_first(descriptor: int, operation: int) -> None:
        if len(seen) < times:
            path.unlink()
            if replaced:
                path.touch()
        seen.append(descriptor)
        flock(descriptor, operation)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", remove_first)
        assert locks.acquire_lock(KEY, "a", 0)
    assert len(seen) == times + 1
    assert len(descriptors() - before) == 1
    assert not is_free(path)
    locks.release_lock(KEY, "a")
    assert is_free(path)


def test_the_folder_of_a_lock_is_made(tmp_path: Path) -> None:
    locks = FlockManager(tmp_path / "new")
    assert locks.acquire_lock("a/b/c", "me", 0)
    assert (tmp_path / "new/a/b/.c.lock").is_file()
    locks.release_lock("a/b/c", "me")
    assert locks.acquire_lock("plain", "me", 0)
    assert (tmp_path / "new/.plain.lock").is_file()
    locks.release_lock("plain", "me")


def test_who_may_write_in_the_folder_may_lock_there(locks: FlockManager, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert locks.acquire_lock(KEY, "a", 0)
    finally:
        os.umask(before)
    assert (tmp_path / LOCK_FILE).stat().st_mode & 0o777 == 0o666
    locks.release_lock(KEY, "a")


def test_a_lock_given_back_is_free_though_a_child_has_the_file_open(
    locks: FlockManager, tmp_path: Path
) -> None:
    locks.acquire_lock(KEY, "a")
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    (opened,) = (link.name for link in links if link.readlink() == tmp_path / LOCK_FILE)
    copy = os.dup(int(opened))
    try:
        locks.release_lock(KEY, "a")
        assert is_free(tmp_path / LOCK_FILE)
    finally:
        os.close(copy)


@pytest.mark.parametrize("key", ["../x", "/x", "a/../x", "", "."])
def test_every_question_refuses_a_key_outside_the_root(locks: FlockManager, key: str) -> None:
    questions: list[Callable[[], Any]] = [
        lambda: locks.acquire_lock(key, "a"),
        lambda: locks.release_lock(key, "a"),
        lambda: locks.is_locked(key),
        lambda: locks.is_lock_holder(key, "a"),
        lambda: locks.wait_for_lock(key),
    ]
    for question in questions:
        with pytest.raises(IntegrityError) as caught:
            question()
        assert caught.value.code == "bad_key"


@pytest.mark.parametrize("timeout", [0.0, 0.05, 0.4])
def test_waiting_takes_as_long_as_it_may(locks: FlockManager, tmp_path: Path, timeout: float) -> None:
    async def both() -> None:
        assert not await locks.aacquire_lock(KEY, "a", timeout)
        assert not await locks.await_for_lock(KEY, timeout)

    with held(tmp_path / LOCK_FILE):
        for wait in (
            lambda: locks.acquire_lock(KEY, "a", timeout),
            lambda: locks.wait_for_lock(KEY, timeout),
        ):
            started = time.monotonic()
            assert wait() is False
            assert timeout <= time.monotonic() - started < timeout + 5
        started = time.monotonic()
        asyncio.run(both())
        assert 2 * timeout <= time.monotonic() - started < 2 * timeout + 5


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_who_waits_gets_the_lock_soon_after_it_is_given_back(
    locks: FlockManager, tmp_path: Path, other_thread: ThreadPoolExecutor, timeout: float | None
) -> None:
    async def wait() -> bool:
        return await locks.await_for_lock(KEY, timeout)

    async def acquire() -> bool:
        return await locks.aacquire_lock(KEY, "b", timeout)

    for job in (
        lambda: locks.wait_for_lock(KEY, timeout),
        lambda: asyncio.run(wait()),
        lambda: locks.acquire_lock(KEY, "b", timeout),
        lambda: asyncio.run(acquire()),
    ):
        with held(tmp_path / LOCK_FILE):
            waiting = other_thread.submit(job)
            time.sleep(0.15)
            assert not waiting.done()
        assert waiting.result(10) is True
        if locks.is_lock_holder(KEY, "b"):
            locks.release_lock(KEY, "b")


def test_waiting_looks_again_within_a_tenth_of_a_second(
    locks: FlockManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seldom enough to cost nothing, often enough to lose nothing; the first look comes at once."""
    slept: list[float] = []
    passed = [1_000.0]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        passed[0] += seconds

    with held(tmp_path / LOCK_FILE), monkeypatch.context() as patch:
        patch.setattr(time, "sleep", sleep)
        patch.setattr(time, "monotonic", lambda: passed[0])
        assert not locks.acquire_lock(KEY, "a", 0.5)
        assert slept == pytest.approx([0.005, 0.01, 0.02, 0.04, 0.08, 0.1, 0.1, 0.1, 0.045])
        slept.clear()
        assert not locks.wait_for_lock(KEY, 0.012)
        assert slept == pytest.approx([0.005, 0.007])
        slept.clear()
        assert not locks.wait_for_lock(KEY, 0)
        assert slept == []


def test_another_living_thread_keeps_its_lock(locks: FlockManager, other_thread: ThreadPoolExecutor) -> None:
    assert other_thread.submit(locks.acquire_lock, KEY, "theirs", 0).result()
    assert locks.is_lock_holder(KEY, "theirs")
    assert not locks.acquire_lock(KEY, "mine", 0)
    assert locks.is_locked(KEY)
    assert not locks.wait_for_lock(KEY, 0)
    assert other_thread.submit(locks.wait_for_lock, KEY, 0).result()
    # Whoever knows the holder's name speaks for it, as Prefect does from other threads.
    assert locks.acquire_lock(KEY, "theirs", 0)
    locks.release_lock(KEY, "theirs")
    assert not locks.is_locked(KEY)


def test_a_lock_taken_over_has_one_owner(locks: FlockManager, other_thread: ThreadPoolExecutor) -> None:
    thread = threading.Thread(target=locks.acquire_lock, args=(KEY, "ended"))
    thread.start()
    thread.join()
    assert locks.acquire_lock(KEY, "next", 0)
    assert (locks.is_lock_holder(KEY, "ended"), locks.is_lock_holder(KEY, "next")) == (False, True)
    # It is this thread's now, so another does not take it over in turn.
    assert not other_thread.submit(locks.acquire_lock, KEY, "third", 0).result()
    with pytest.raises(ValueError, match="no lock held by ended"):
        locks.release_lock(KEY, "ended")
    locks.release_lock(KEY, "next")


def test_the_lock_of_an_ended_task_is_taken_over(locks: FlockManager) -> None:
    async def main() -> None:
        assert await asyncio.create_task(locks.aacquire_lock(KEY, "first"))
        assert locks.is_locked(KEY)
        assert await locks.aacquire_lock(KEY, "second", 0)
        # This task lives, so its lock stays.
        assert not await asyncio.create_task(locks.aacquire_lock(KEY, "third", 0))

    asyncio.run(main())
    assert locks.is_lock_holder(KEY, "second")
    # Outside the event loop its tasks are over.
    assert locks.acquire_lock(KEY, "fourth", 0)
    locks.release_lock(KEY, "fourth")


def until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def timers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


def test_a_hold_ends_by_itself(locks: FlockManager, tmp_path: Path) -> None:
    before = descriptors()
    assert locks.acquire_lock(KEY, "a", hold_timeout=0.1)
    assert until(lambda: is_free(tmp_path / LOCK_FILE))
    assert not locks.is_lock_holder(KEY, "a")
    assert descriptors() == before
    with pytest.raises(ValueError, match="no lock held"):
        locks.release_lock(KEY, "a")


@pytest.mark.parametrize("again", ["a", "b"])
def test_who_asks_again_holds_on(locks: FlockManager, tmp_path: Path, again: str) -> None:
    assert locks.acquire_lock(KEY, "a", hold_timeout=0.2)
    assert locks.acquire_lock(KEY, again)
    time.sleep(0.5)
    assert locks.is_lock_holder(KEY, again)
    assert not is_free(tmp_path / LOCK_FILE)
    # And may set an end anew.
    assert locks.acquire_lock(KEY, again, hold_timeout=0.05)
    assert until(lambda: is_free(tmp_path / LOCK_FILE))


def test_the_end_of_a_hold_leaves_the_next_holder_alone(locks: FlockManager, tmp_path: Path) -> None:
    assert locks.acquire_lock(KEY, "a", hold_timeout=0.2)
    locks.release_lock(KEY, "a")
    assert locks.acquire_lock(KEY, "a")
    time.sleep(0.4)
    assert locks.is_lock_holder(KEY, "a")
    assert not is_free(tmp_path / LOCK_FILE)
    locks.release_lock(KEY, "a")


def test_a_hold_does_not_keep_the_process_alive(locks: FlockManager) -> None:
    assert locks.acquire_lock(KEY, "a", hold_timeout=600)
    (timer,) = timers()
    assert timer.daemon
    locks.release_lock(KEY, "a")
    assert until(lambda: not timers())


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_warns_and_goes_on(
    locks: FlockManager, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(number, "No locks available")

    before = descriptors()
    monkeypatch.setattr(fcntl, "flock", refuse)
    assert not locks.is_locked(KEY)
    assert locks.acquire_lock(KEY, "a", 0)
    (message,) = caplog.messages
    assert str(locks.root / "stages/x/receipts") in message
    assert "No locks available" in message
    assert not locks.wait_for_lock(KEY, 0) or locks.is_lock_holder(KEY, "a")
    assert locks.is_locked(KEY)
    assert not locks.is_locked("stages/x/receipts/other")
    locks.release_lock(KEY, "a")
    assert not locks.is_locked(KEY)
    assert descriptors() == before


def test_a_failing_disk_is_an_error(
    locks: FlockManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int, operation: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    (tmp_path / LOCK_FILE).touch()
    before = descriptors()
    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(StorageError) as caught:
        locks.acquire_lock(KEY, "a", 0)
    assert caught.value.where == str(tmp_path / LOCK_FILE)
    with pytest.raises(OSError, match="Input/output error"):
        locks.is_locked(KEY)
    assert descriptors() == before
    assert not locks.is_lock_holder(KEY, "a")


_FORK = """
import os, sys, warnings
from tasks.runtime.locks import FlockManager
locks = FlockManager(sys.argv[1])
assert locks.acquire_lock("a", "parent")
warnings.simplefilter("ignore")
child = os.fork()
if not child:
    free = not locks.is_lock_holder("a", "parent") and locks.is_locked("a") and not locks.acquire_lock("a", "x", 0)
    os._exit(0 if free and locks.acquire_lock("b", "child", 0) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert locks.is_lock_holder("a", "parent")
locks.release_lock("a", "parent")
assert locks.acquire_lock("b", "parent", 0)
"""


def test_a_forked_child_holds_none_of_its_parents_locks(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _FORK, str(tmp_path)], check=True, timeout=120)
