"""Task runners by name."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import threading
from typing import Any

from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner, ThreadPoolTaskRunner

from schemas.errors import ConfigError
from tasks.runtime.settings import quiet_run_logs

RUNNERS = ("threads", "processes")


def make_runner(kind: str, workers: int) -> TaskRunner[Any]:
    """The runner for `flow.with_options(task_runner=...)`.

    `threads` is right for work in Arrow, numpy and tokenizers, which release the GIL. `processes` spawns
    fresh interpreters (Prefect's choice, and never a fork of a threaded process): each imports the task's
    module anew, 1-2 s once a worker.

    Raises:
        ConfigError: code `unknown_runner` or `bad_workers`.
    """
    if workers < 1:
        raise ConfigError(f"{workers} workers; at least 1 is needed", code="bad_workers", where="--workers")
    if kind == "threads":
        return ThreadPoolTaskRunner(max_workers=workers)
    if kind == "processes":
        return ProcessPoolTaskRunner(max_workers=workers, initializer=start_worker)
    allowed = ", ".join(RUNNERS)
    raise ConfigError(f"unknown runner {kind!r}; allowed: {allowed}", code="unknown_runner", where="--runner")


def start_worker() -> None:
    """Prepare a worker process: no tracebacks on the terminal, and no life after its parent's."""
    quiet_run_logs()
    end_with_parent()


def end_with_parent() -> None:
    """In a worker process: end as soon as the parent does.

    A killed parent cannot stop its pool: a worker would finish its task, holding its lock, and then wait for
    more for ever.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()
