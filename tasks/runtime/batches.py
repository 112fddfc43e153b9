"""Make many parts in few task runs: a batch is consecutive jobs of a step, each with a receipt of its own.

A task run takes tens of milliseconds of this process and rows in the server's database, so 20,000 parts are 200 runs.
Which parts share a batch enters no key: a part is cached, locked and resumed alone, as if it had a task run of its
own. A part that fails does not take the rest of its batch with it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from prefect import Task, task

from schemas.errors import GristmillError, IntegrityError, StorageError, WorkError
from schemas.run import Receipt
from tasks.run.receipts import Verify, check_receipt, format_record, receipt_key, record_path
from tasks.runtime.cache import valid_receipt
from tasks.runtime.locks import FlockManager
from tasks.runtime.stopping import stopped
from tasks.storage.atomic import write_file

# As many task runs as a step has at most. Each is then minutes of work at most, and its own cost does not count.
MOST_TASKS = 200

log = logging.getLogger("gristmill.runtime")

T = TypeVar("T")


@dataclass(frozen=True)
class Made:
    """What a batch returns: the receipts of its parts, in order, and how many of them were there already."""

    receipts: tuple[Receipt, ...]
    reused: int


class Batch:
    """Consecutive jobs of a step.

    Not a dataclass: Prefect would look for futures in everything that the jobs hold.

    Args:
        jobs, names: what to make, and what each is called.
        output_dir: the folder of the receipts and the files they name.
        verify: how closely the files of a receipt are checked before it is used.
        refresh: make parts even if they have a valid receipt.
    """

    def __init__(
        self, jobs: Sequence[Any], names: Sequence[str], output_dir: Path, verify: Verify, refresh: bool
    ) -> None:
        self.jobs, self.names = jobs, names
        self._lock, self._verify, self._refresh = FlockManager(output_dir), verify, refresh
        # Survives a failed attempt: a retry makes only what has no receipt.
        self._receipts: dict[int, Receipt] = {}
        self._reused = 0

    def make(self, kernel: Callable[[Any], Receipt]) -> Made:
        """Make every part that has no valid receipt, and store its receipt as soon as it is made.

        Raises:
            Exception: of the first part that failed, with its name; the others were made.
            WorkError: `stopped`: the run was interrupted.
        """
        faults = []
        for number, job in enumerate(self.jobs):
            if number in self._receipts:
                continue
            if stopped.is_set():
                raise WorkError("stopped; run it again to resume", code="stopped", where=self.names[number])
            try:
                self._receipts[number] = self._make_part(kernel, job)
            except Exception as error:
                log.error("%s failed: %s", self.names[number], error)
                faults.append((self.names[number], error))
        if faults:
            name, first = faults[0]
            raise _named(first, name, len(faults) - 1)
        return Made(tuple(self._receipts[number] for number in range(len(self.jobs))), self._reused)

    def _make_part(self, kernel: Callable[[Any], Receipt], job: Any) -> Receipt:
        key = receipt_key(job.stage, job.task, job.part)
        with _locked(self._lock, key):
            # Another run may have made it since this one looked.
            root = self._lock.root
            receipt = None if self._refresh else valid_receipt(root, key, self._verify)
            if receipt is not None:
                self._reused += 1
                return receipt
            receipt = kernel(job)
            write_file(record_path(root, key), format_record(receipt))
            return receipt


@contextlib.contextmanager
def _locked(lock: FlockManager, key: str) -> Iterator[None]:
    holder = uuid.uuid4().hex
    lock.acquire_lock(key, holder)
    try:
        yield
    finally:
        lock.release_lock(key, holder)


def _named(error: Exception, name: str, more: int) -> Exception:
    """Add to an error which part it is of, and how many more of the batch failed."""
    rest = f"; {more} more of its batch failed, see the run's log" if more else ""
    if isinstance(error, GristmillError):
        error.message = f"{error.message} (in {name}{rest})"
        error.args = (error.message,)
    else:
        error.add_note(f"in {name}{rest}")
    return error


def batch_task(step: Task[..., Receipt]) -> Task[..., Made]:
    """Return a task that makes the parts of a `Batch`, the parameter `batch`, as `step` would make each."""
    kernel = step.fn

    def run(batch: Batch) -> Made:
        return batch.make(kernel)

    run.__name__ = run.__qualname__ = step.name
    run.__doc__ = step.fn.__doc__
    return task(name=step.name, persist_result=False)(run)


def look_up(output_dir: Path, jobs: Sequence[Any], verify: Verify) -> list[Receipt | None]:
    """Return the valid receipts that jobs have already, without locks, for jobs in order.

    A record that is invalid, or cannot be read, is as good as none here: whoever makes the part looks again, holding
    its lock.
    """
    root = output_dir.resolve()
    receipts: list[Receipt | None] = []
    for job in jobs:
        receipt = None
        with contextlib.suppress(IntegrityError, StorageError):
            receipt = check_receipt(root, receipt_key(job.stage, job.task, job.part), verify)
        receipts.append(receipt)
    return receipts


def cut_batches(items: Sequence[T], weights: Sequence[int], most: int) -> list[Sequence[T]]:
    """Cut items into at most `most` runs of consecutive ones of about equal weight.

    >>> cut_batches("abcdefg", [1, 1, 1, 1, 4, 4, 1], most=3)
    ['abcd', 'e', 'fg']
    """
    total = sum(weights)
    # An item belongs to the batch in which its middle lies.
    places = [
        (2 * before + weight) * most // (2 * total)
        for before, weight in zip(itertools.accumulate(weights, initial=0), weights, strict=False)
    ]
    edges = [number for number in range(1, len(places)) if places[number] != places[number - 1]]
    return [items[first:end] for first, end in itertools.pairwise([0, *edges, len(items)]) if end]
