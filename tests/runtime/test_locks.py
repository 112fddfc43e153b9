from __future__ import annotations

import asyncio
import copy
import errno
import fcntl
import pickle
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import cloudpickle
import pytest
from prefect.locking.protocol import LockManager

from schemas.errors import IntegrityError, StorageError
from tasks.run.receipts import receipt_key
from tasks.runtime.locks import FlockManager

KEY = receipt_key("0123456789abcdef", "pack", 3)
LOCK_FILE = "stages/0123456789abcdef/receipts/.pack-000003.json.lock"

_HOLD = """
import os, sys, time
from tasks.runtime.locks import FlockManager
assert FlockManager(sys.argv[1]).acquire_lock(sys.argv[2], "there", 10)
{then}
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def locks(tmp_path: Path) -> FlockManager:
    return FlockManager(tmp_path)


@contextmanager
def held_elsewhere(root: Path, then: str = "") -> Iterator[subprocess.Popen[str]]:
    """Another process holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD.format(then=textwrap.dedent(then)), str(root), KEY],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def other_thread() -> Iterator[ThreadPoolExecutor]:
    """One thread that stays alive during the test."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


def test_it_is_a_prefect_lock_manager(locks: FlockManager) -> None:
    assert isinstance(locks, LockManager)


def test_acquire_and_release(locks: FlockManager, tmp_path: Path) -> None:
    assert not locks.is_locked(KEY)
    assert not locks.is_lock_holder(KEY, "a")
    assert locks.acquire_lock(KEY, "a")
    assert locks.is_locked(KEY)
    assert locks.is_lock_holder(KEY, "a")
    assert not locks.is_lock_holder(KEY, "b")
    locks.release_lock(KEY, "a")
    assert not locks.is_locked(KEY)
    # The lock file stays: removing it would let a waiter and a newcomer both in.
    assert (tmp_path / LOCK_FILE).is_file()
    assert locks.acquire_lock(KEY, "b", 0)
    locks.release_lock(KEY, "b")


def test_release_by_another_holder_is_refused(locks: FlockManager) -> None:
    with pytest.raises(ValueError, match="no lock held by a"):
        locks.release_lock(KEY, "a")
    locks.acquire_lock(KEY, "a")
    with pytest.raises(ValueError, match="no lock held by b"):
        locks.release_lock(KEY, "b")
    locks.release_lock(KEY, "a")


def test_locks_of_different_keys_are_independent(locks: FlockManager) -> None:
    other = receipt_key("0123456789abcdef", "pack", 4)
    assert locks.acquire_lock(KEY, "a")
    assert locks.acquire_lock(other, "b", 0)
    locks.release_lock(KEY, "a")
    assert locks.is_locked(other)
    locks.release_lock(other, "b")


def test_threads_exclude_each_other(tmp_path: Path) -> None:
    inside, most = 0, 0

    def job(number: int) -> None:
        nonlocal inside, most
        # A manager of its own each time, as Prefect copies policies freely.
        locks = FlockManager(tmp_path)
        assert locks.acquire_lock(KEY, f"holder {number}", 30)
        inside += 1
        most = max(most, inside)
        time.sleep(0.002)
        inside -= 1
        locks.release_lock(KEY, f"holder {number}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(job, range(40)))
    assert most == 1


def test_another_thread_waits(locks: FlockManager, other_thread: ThreadPoolExecutor) -> None:
    locks.acquire_lock(KEY, "a")
    started = time.monotonic()
    assert other_thread.submit(locks.acquire_lock, KEY, "b", 0).result() is False
    assert time.monotonic() - started < 0.25
    assert other_thread.submit(locks.acquire_lock, KEY, "b", 0.3).result() is False
    assert 0.3 <= time.monotonic() - started < 5
    waiting = other_thread.submit(locks.acquire_lock, KEY, "b")
    time.sleep(0.05)
    assert not waiting.done()
    locks.release_lock(KEY, "a")
    assert waiting.result(5) is True
    assert locks.is_lock_holder(KEY, "b")
    locks.release_lock(KEY, "b")


def test_waiting_for_a_lock(locks: FlockManager, other_thread: ThreadPoolExecutor) -> None:
    assert locks.wait_for_lock(KEY, 0)
    locks.acquire_lock(KEY, "a")
    assert other_thread.submit(locks.wait_for_lock, KEY, 0.1).result() is False
    waiting = other_thread.submit(locks.wait_for_lock, KEY)
    time.sleep(0.05)
    assert not waiting.done()
    locks.release_lock(KEY, "a")
    assert waiting.result(5) is True


def test_reentry_never_blocks(locks: FlockManager) -> None:
    assert locks.acquire_lock(KEY, "a")
    assert locks.acquire_lock(KEY, "a")
    # The same thread under a new name: what Prefect does when it retries after losing a lock.
    assert locks.acquire_lock(KEY, "b")
    assert locks.wait_for_lock(KEY)
    assert locks.is_lock_holder(KEY, "b")
    locks.release_lock(KEY, "b")
    assert not locks.is_locked(KEY)


def test_lock_of_an_ended_thread_is_taken_over(locks: FlockManager) -> None:
    thread = threading.Thread(target=locks.acquire_lock, args=(KEY, "a"))
    thread.start()
    thread.join()
    assert locks.is_locked(KEY)
    assert locks.acquire_lock(KEY, "b", 0)
    locks.release_lock(KEY, "b")


def test_hold_timeout_frees_the_lock_for_everybody(locks: FlockManager, tmp_path: Path) -> None:
    assert locks.acquire_lock(KEY, "a", hold_timeout=0.1)
    with (tmp_path / LOCK_FILE).open() as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        deadline = time.monotonic() + 5
        while locks.is_lock_holder(KEY, "a") and time.monotonic() < deadline:
            time.sleep(0.01)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert not locks.is_locked(KEY)


def test_copies_are_the_same_lock(locks: FlockManager) -> None:
    locks.acquire_lock(KEY, "a")
    for clone in (
        copy.copy(locks),
        copy.deepcopy(locks),
        pickle.loads(pickle.dumps(locks)),  # noqa: S301 - our own object
        cloudpickle.loads(cloudpickle.dumps(locks)),
    ):
        assert type(clone) is FlockManager
        assert clone.root == locks.root
        assert clone.is_lock_holder(KEY, "a")
    locks.release_lock(KEY, "a")


def test_processes_exclude_each_other_until_one_is_killed(locks: FlockManager, tmp_path: Path) -> None:
    with held_elsewhere(tmp_path) as process:
        assert locks.is_locked(KEY)
        assert not locks.acquire_lock(KEY, "a", 0)
        assert not locks.wait_for_lock(KEY, 0.1)
        process.kill()
        started = time.monotonic()
        assert locks.acquire_lock(KEY, "a", 5)
        assert time.monotonic() - started < 3
    locks.release_lock(KEY, "a")


def test_a_forked_child_does_not_keep_the_lock_of_a_killed_parent(
    locks: FlockManager, tmp_path: Path
) -> None:
    fork = """
    if os.fork() == 0:
        time.sleep(5)
        os._exit(0)
    """
    with held_elsewhere(tmp_path, fork) as process:
        process.kill()
        assert locks.acquire_lock(KEY, "a", 2)
    locks.release_lock(KEY, "a")


def test_lock_survives_the_removal_of_its_folder(locks: FlockManager, tmp_path: Path) -> None:
    locks.acquire_lock(KEY, "a")
    (tmp_path / LOCK_FILE).unlink()
    (tmp_path / LOCK_FILE).parent.rmdir()
    locks.release_lock(KEY, "a")
    assert locks.acquire_lock(KEY, "b", 0)
    assert (tmp_path / LOCK_FILE).is_file()
    locks.release_lock(KEY, "b")


def test_asyncio_tasks_exclude_each_other_without_blocking_the_loop(locks: FlockManager) -> None:
    inside, most = 0, 0

    async def job(number: int) -> None:
        nonlocal inside, most
        assert await locks.aacquire_lock(KEY, f"holder {number}", 30)
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.01)
        inside -= 1
        locks.release_lock(KEY, f"holder {number}")

    async def main() -> None:
        await asyncio.gather(*(job(number) for number in range(8)))
        assert await locks.aacquire_lock(KEY, "a")
        assert await locks.aacquire_lock(KEY, "b", 0)  # this very task
        assert await asyncio.create_task(locks.aacquire_lock(KEY, "c", 0.05)) is False
        assert await asyncio.create_task(locks.await_for_lock(KEY, 0.05)) is False
        locks.release_lock(KEY, "b")
        assert await asyncio.create_task(locks.await_for_lock(KEY, 0)) is True

    asyncio.run(main())
    assert most == 1


@pytest.mark.parametrize("key", ["../x", "/etc/x", "a/../../x", "", "."])
def test_keys_outside_the_root_are_refused(locks: FlockManager, key: str) -> None:
    with pytest.raises(IntegrityError) as caught:
        locks.acquire_lock(key, "a")
    assert caught.value.code == "bad_key"


def test_a_lock_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "stages").write_bytes(b"in the way")
    with pytest.raises(StorageError, match="cannot lock"):
        FlockManager(tmp_path).acquire_lock(KEY, "a", 0)


def test_file_system_without_locks(
    locks: FlockManager,
    other_thread: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    # Not to be had on a local disk: some network mounts answer like this.
    monkeypatch.setattr(fcntl, "flock", refuse)
    assert locks.acquire_lock(KEY, "a")
    assert "has no locks" in caplog.text
    assert not other_thread.submit(locks.acquire_lock, KEY, "b", 0).result()
    locks.release_lock(KEY, "a")
    assert not locks.is_locked(KEY)
