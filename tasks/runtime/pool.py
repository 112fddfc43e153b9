"""Say which work a killed worker process had: the executor only says that its pool broke."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from prefect.context import FlowRunContext

from schemas.errors import WorkError
from tasks.run.receipts import receipt_key
from tasks.runtime.locks import FlockManager

_END_S = 2.0
_LOOK_S = 0.05
_REMEDY = (
    "let fewer tasks run at once (--workers, or GRISTMILL_WORKERS of a deployment) or give the machine more memory; "
    "finished tasks are kept: run the same command again to resume"
)


class Pool:
    """The worker processes of a stage, seen from the process that started them."""

    def __init__(self) -> None:
        self._processes: dict[int, BaseProcess] = {}

    def look(self) -> None:
        """Remember the worker processes: the executor drops them, with their exit codes, when one is killed."""
        for process in multiprocessing.active_children():
            if process.pid is not None:
                self._processes.setdefault(process.pid, process)

    def error(self, output_dir: Path, step: str, jobs: Mapping[str, Any]) -> WorkError:
        """Return the error of a broken pool, with the tasks that the killed process had.

        Args:
            jobs: by name of their tasks, all that were submitted.
        """
        codes = self._codes()
        # The executor ends the others with SIGTERM.
        killed = {pid: code for pid, code in codes.items() if code not in (None, 0, -signal.SIGTERM)}
        held = {name: _last_holder(output_dir, job) for name, job in jobs.items()}
        unfinished = [name for name, job in jobs.items() if not _receipt(output_dir, job).exists()]
        names = [name for name in unfinished if held[name] in (killed or codes)]
        code = next(iter(killed.values()), None)
        how = f"by {signal.Signals(-code).name}" if code is not None and code < 0 else "abruptly"
        memory = " (out of memory?)" if code in (None, -signal.SIGKILL) else ""
        return WorkError(
            f"a worker process ended {how} during this work{memory}; {_REMEDY}",
            code="worker_killed",
            where=" or ".join(names) or step,
        )

    def _codes(self) -> dict[int, int | None]:
        """Return how each process ended, by number; the executor, which ends all, may just be asking the same."""
        deadline = time.monotonic() + _END_S
        while True:
            codes = {pid: process.exitcode for pid, process in self._processes.items()}
            if None not in codes.values() or time.monotonic() > deadline:
                return codes
            time.sleep(_LOOK_S)


def drop_messages() -> None:
    """Let this process end although a killed worker process may have held the lock of the messages between them.

    Prefect's runner reads the logs of its workers from a queue, and Python waits at its end until all that was put
    into it is written: for ever, if a process died while it wrote.
    """
    context = FlowRunContext.get()
    messages = getattr(context.task_runner, "_subprocess_message_queue", None) if context else None
    if messages is not None:
        messages.cancel_join_thread()


def _last_holder(output_dir: Path, job: Any) -> int | None:
    return FlockManager(output_dir).last_holder(receipt_key(job.stage, job.task, job.part))


def _receipt(output_dir: Path, job: Any) -> Path:
    return output_dir / receipt_key(job.stage, job.task, job.part)
