"""Run steps as Prefect task runs, with receipts for what is worth caching."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from prefect import Task
from prefect.futures import PrefectFuture

from schemas.run import Receipt
from tasks.report.reuse import Reuse
from tasks.run.receipts import Verify
from tasks.runtime.cache import bind
from tasks.runtime.names import task_names
from tasks.runtime.pool import Pool, drop_messages
from tasks.runtime.progress import ProgressArtifact, Stage
from tasks.runtime.retries import RETRIES

# Prefect's state name for a task whose receipt was found.
_CACHED = "Cached"
# How often the worker processes are looked at, so that a killed one is known.
_LOOK_S = 0.5

# Runs one task per job, in any order; returns the receipts in the order of the jobs.
Each = Callable[[Task[..., Receipt], Sequence[Any]], list[Receipt]]
# Runs one step that is not cached.
Once = Callable[[Task[..., Any], Any], Any]


def each_with_receipts(
    output_dir: Path, verify: Verify, refresh: bool = False, reuse: Reuse | None = None
) -> Each:
    """Return a function that maps a step over jobs on the flow's task runner, cached by receipt.

    It returns the receipts in the order of the jobs, notes in `reuse` which tasks ran, and raises what the first
    failed task raised. Tasks are named after their jobs, retried when storage hiccups, and shown as they end.
    """

    def each(step: Task[..., Receipt], jobs: Sequence[Any]) -> list[Receipt]:
        bound = bind(step, output_dir, verify, refresh).with_options(**RETRIES)
        names = task_names(step.name, jobs)
        with Stage(step.name, len(jobs), ProgressArtifact(step.name)) as stage:
            # Create all before the first one runs: Prefect parses source code for each, and in Python 3.11 two
            # threads that build syntax trees at once collide ("AST constructor recursion depth mismatch").
            tasks = [_named(bound, name) for name in names]
            futures = [task.submit(job=job) for task, job in zip(tasks, jobs, strict=True)]
            pool = Pool()
            try:
                _watch(stage, names, futures, pool)
                receipts = [future.result() for future in futures]
            except BrokenProcessPool:
                drop_messages()
                raise pool.error(output_dir, step.name, dict(zip(names, jobs, strict=True))) from None
        for future in futures:
            if reuse is not None:
                reuse.note(step.name, cached=_is_cached(future))
        return receipts

    return each


def run_once(step: Task[..., Any], job: Any) -> Any:
    """Run a step that is not cached, in the flow's own thread."""
    with Stage(step.name, 1) as stage:
        result = step.with_options(**RETRIES)(job)
        stage.advance(step.name, result, reused=False)
    return result


def _named(task: Task[..., Receipt], name: str) -> Task[..., Receipt]:
    # Prefect would fill in braces.
    return task.with_options(task_run_name=name.replace("{", "{{").replace("}", "}}"))


def _watch(stage: Stage, names: Sequence[str], futures: Sequence[PrefectFuture[Receipt]], pool: Pool) -> None:
    """Show tasks as they end, in whatever order, up to the first that fails."""
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number, future in enumerate(futures):
        future.add_done_callback(lambda _, number=number: ended.put(number))  # type: ignore[misc]
    for _ in futures:
        number = _next(ended, pool)
        future = futures[number]
        future.wait()
        if not future.state.is_completed():
            return
        stage.advance(names[number], future.result(), reused=_is_cached(future))


def _next(ended: queue.SimpleQueue[int], pool: Pool) -> int:
    while True:
        pool.look()
        with contextlib.suppress(queue.Empty):
            return ended.get(timeout=_LOOK_S)


def _is_cached(future: PrefectFuture[Receipt]) -> bool:
    return bool(future.state.name == _CACHED)
