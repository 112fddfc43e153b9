"""Create task runners by name."""

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
    """Create the runner for `flow.with_options(task_runner=...)`.

    `threads` suits work in Arrow, numpy and tokenizers, which release the GIL. `processes` spawns
    fresh interpreters (Prefect's choice, and never a fork of a threaded process): each imports the task's
    module again, 1-2 s once per worker.

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
    """Create the runner that a deployment's job variables choose; in the flow's body it would be too late.

    `GRISTMILL_RUNNER` is its kind (default `threads`), `GRISTMILL_WORKERS` the number of parallel tasks (default: one
    per processor). The options of the command line take precedence.

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
    """Prepare a worker process: print no tracebacks on the terminal, and end with the parent."""
    quiet_run_logs()
    end_with_parent()


def end_with_parent() -> None:
    """End this worker process as soon as its parent ends.

    A killed parent cannot stop its pool: a worker would finish its task, holding its lock, and then wait forever for
    more.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()
