"""Task runners by name."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Mapping
from typing import Any

from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner, ThreadPoolTaskRunner

from schemas.errors import ConfigError
from tasks.runtime.settings import quiet_run_logs

RUNNERS = ("threads", "processes")
RUNNER_VARIABLE = "GRISTMILL_RUNNER"
WORKERS_VARIABLE = "GRISTMILL_WORKERS"


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
    raise _unknown_runner(kind, "--runner")


def runner_from_environment(environ: Mapping[str, str] = os.environ) -> TaskRunner[Any]:
    """The runner a deployment chooses in its job variables, where the flow's body is too late to choose.

    `GRISTMILL_RUNNER` is its kind (default `threads`), `GRISTMILL_WORKERS` how many tasks run at once (default: one
    a processor). The command line has options instead, and wins.

    Raises:
        ConfigError: code `unknown_runner` or `bad_workers`.
    """
    kind = environ.get(RUNNER_VARIABLE) or "threads"
    text = environ.get(WORKERS_VARIABLE) or str(os.cpu_count() or 1)
    if kind not in RUNNERS:
        raise _unknown_runner(kind, RUNNER_VARIABLE)
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(
            f"{text!r} workers; a whole number from 1 on is needed",
            code="bad_workers",
            where=WORKERS_VARIABLE,
        )
    return make_runner(kind, int(text))


def _unknown_runner(kind: str, where: str) -> ConfigError:
    allowed = ", ".join(RUNNERS)
    return ConfigError(f"unknown runner {kind!r}; allowed: {allowed}", code="unknown_runner", where=where)


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
