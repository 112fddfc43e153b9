"""Base Prefect's cache on our receipts: a task whose receipt verifies is not run again.

The order of events in a Prefect task run determines where the record is checked:

1. `compute_key`, before any lock. An exception there is logged and the task runs uncached.
2. the transaction takes the lock, then asks the store whether the record exists, which already passes it to
   the serializer it names. So after waiting for another run it sees that run's receipt.
3. hit: the record is read; miss: the task runs, the record is written, the lock is released.

A record is therefore checked after the lock is taken and before the store reads it, by the lock itself
(`ReceiptLock`). In `compute_key` it would be too early: a run that waits for another's lock would have checked
before the other wrote, and removing the bad record could remove the good one written since.

Prefect writes records in place, not atomically; one torn by a kill is such a bad record and is rebuilt.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

from prefect import Task
from prefect.cache_policies import CachePolicy
from prefect.context import TaskRunContext

from schemas.errors import IntegrityError
from schemas.run import Receipt
from tasks.run.receipts import Verify, check_receipt, receipt_key, record_path
from tasks.runtime.locks import FlockManager
from tasks.runtime.serializer import ReceiptSerializer
from tasks.storage.atomic import storage_errors
from tasks.storage.names import remove_path

P = ParamSpec("P")
R = TypeVar("R")

_logger = logging.getLogger(__name__)


class Job(Protocol):
    """The task parameter `job`: enough to name its receipt."""

    @property
    def stage(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def part(self) -> int: ...


class ReceiptLock(FlockManager):
    """A lock on a receipt that, once taken, guarantees that any receipt still there is valid.

    A record that is foreign or torn, or whose files are missing or changed, is removed, so Prefect sees a
    miss and never deserialises it. If it cannot be removed, taking the lock fails, and with it the task.

    Args:
        root: the output directory.
        verify: how closely the receipt's files are checked.
    """

    def __init__(self, root: str | Path, verify: str) -> None:
        super().__init__(root)
        self.verify = Verify(verify)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (str(self.root), self.verify.value))

    def acquire_lock(self, key: str, holder: str, *limits: Any, **named_limits: Any) -> bool:
        """Take the lock, within the limits of `FlockManager`, then remove an invalid record.

        Raises:
            IntegrityError: code `bad_key`.
            StorageError: locking, reading the record or removing it failed.
        """
        record_path(self.root, key)
        taken = super().acquire_lock(key, holder, *limits, **named_limits)
        if taken:
            self._settle(key, holder)
        return taken

    async def aacquire_lock(self, key: str, holder: str, *limits: Any, **named_limits: Any) -> bool:
        """Do what `acquire_lock` does, without blocking the event loop while it waits and reads."""
        record_path(self.root, key)
        taken = await super().aacquire_lock(key, holder, *limits, **named_limits)
        if taken:
            await asyncio.to_thread(self._settle, key, holder)
        return taken

    def _settle(self, key: str, holder: str) -> None:
        try:
            valid_receipt(self.root, key, self.verify)
        except BaseException:
            # Prefect assumes the lock was not taken and would never release it.
            self.release_lock(key, holder)
            raise


def valid_receipt(output_dir: Path, key: str, verify: Verify) -> Receipt | None:
    """Return the receipt under `key`, whose lock the caller holds; remove the record if it is invalid.

    Raises:
        StorageError: the record cannot be read or removed.
        ConfigError: `foreign_output`: its folder is reached through a link.
    """
    try:
        return check_receipt(output_dir, key, verify)
    except IntegrityError as error:
        _logger.warning("%s; running %s again", error, key)
        path = record_path(output_dir, key)
        with storage_errors(path, "remove a bad record"):
            remove_path(path)
    return None


@dataclass
class ReceiptPolicy(CachePolicy):
    """Cache policy whose key for a task is the path of its receipt.

    The key has only the stage hash, task and part; the flow hashes what they stand for.

    Args:
        output_dir: absolute path of the output directory.
        verify: a `Verify` value.
    """

    output_dir: str = ""
    verify: str = Verify.SIZE.value

    def __post_init__(self) -> None:
        self.isolation_level = "SERIALIZABLE"
        self.lock_manager = ReceiptLock(self.output_dir, self.verify)

    def compute_key(
        self,
        task_ctx: TaskRunContext,
        inputs: dict[str, Any],
        flow_parameters: dict[str, Any],
        **kwargs: Any,
    ) -> str:
        """Return `receipt_key` for the task's parameter `job`."""
        job = inputs.get("job")
        try:
            return receipt_key(job.stage, job.task, job.part)  # type: ignore[union-attr]
        except (AttributeError, TypeError, ValueError):
            # An exception would only be logged, and the task would run uncached; the lock refuses this key, which
            # fails the task.
            return f"a {type(job).__name__} given as job cannot name a receipt"


def bind(task: Task[P, R], output_dir: Path, verify: Verify, refresh: bool = False) -> Task[P, R]:
    """Return `task` with its receipts cached in `output_dir`.

    Args:
        task: a task with a parameter `job` (see `Job`) that returns a `Receipt`.
        output_dir: the folder of the receipts and the files they name.
        verify: how closely the files of a cached receipt are checked.
        refresh: run even if there is a valid receipt.

    Raises:
        TypeError: the task has no parameter `job`.
    """
    if "job" not in inspect.signature(task.fn).parameters:
        raise TypeError(f"the task {task.name!r} needs a parameter named 'job' to name its receipt")
    root = output_dir.resolve()
    # A refreshed task ignores the old record, so verifying its files would be wasted.
    level = Verify.OFF if refresh else Verify(verify)
    return task.with_options(
        cache_policy=ReceiptPolicy(output_dir=str(root), verify=level.value),
        persist_result=True,
        result_storage=root,
        result_serializer=ReceiptSerializer(),
        # Results of another flow run in this process must be looked up and verified on disk.
        cache_result_in_memory=False,
        refresh_cache=refresh,
    )
