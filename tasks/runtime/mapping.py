"""Run steps as Prefect task runs, with receipts for what is worth caching."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from prefect import Task
from prefect.futures import PrefectFuture
from prefect.utilities.annotations import quote

from schemas.run import Receipt
from tasks.report.reuse import Reuse
from tasks.run.receipts import Verify
from tasks.runtime.batches import MOST_TASKS, Batch, Made, batch_task, cut_batches, look_up
from tasks.runtime.cache import bind
from tasks.runtime.names import batch_name, task_names
from tasks.runtime.pool import Pool, drop_messages
from tasks.runtime.progress import ProgressArtifact, Stage
from tasks.runtime.retries import RETRIES

R = TypeVar("R")

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

    It returns the receipts in the order of the jobs, notes in `reuse` which of them were there, and raises what the
    first failed task raised. Tasks are named after their jobs, retried when storage hiccups, and shown as they end.
    Many jobs share the tasks; see `tasks.runtime.batches`.
    """

    def each(step: Task[..., Receipt], jobs: Sequence[Any]) -> list[Receipt]:
        names = task_names(step.name, jobs)
        with Stage(step.name, len(jobs), ProgressArtifact(step.name)) as stage:
            make = _one_by_one if len(jobs) <= MOST_TASKS else _in_batches
            receipts = make(_Step(step, output_dir, verify, refresh, stage), jobs, names)
        if reuse is not None and jobs:
            reuse.note(step.name, cached=True, tasks=stage.reused)
            reuse.note(step.name, cached=False, tasks=len(jobs) - stage.reused)
        return receipts

    return each


@dataclass(frozen=True)
class _Step:
    """A step that is mapped over jobs; see `each_with_receipts`."""

    task: Task[..., Receipt]
    output_dir: Path
    verify: Verify
    refresh: bool
    stage: Stage


def _one_by_one(step: _Step, jobs: Sequence[Any], names: Sequence[str]) -> list[Receipt]:
    """Run a task for each job, which Prefect caches."""
    bound = bind(step.task, step.output_dir, step.verify, step.refresh).with_options(**RETRIES)
    # Quoted: otherwise Prefect looks for futures in all that a job holds, and some name every part of the input.
    runs = [(bound, name, {"job": quote(job)}, {name: job}) for name, job in zip(names, jobs, strict=True)]

    def show(name: str, future: PrefectFuture[Receipt]) -> None:
        step.stage.advance(name, [future.result()], reused=future.state.name == _CACHED)

    return _run(step, runs, show)


def _in_batches(step: _Step, jobs: Sequence[Any], names: Sequence[str]) -> list[Receipt]:
    """Run a task for each batch of the jobs that have no valid receipt."""
    found = [None] * len(jobs) if step.refresh else look_up(step.output_dir, jobs, step.verify)
    there = [receipt for receipt in found if receipt is not None]
    if there:
        step.stage.advance(f"{step.task.name}: {len(there):,} of {len(jobs):,}", there, reused=len(there))
    left = [number for number, receipt in enumerate(found) if receipt is None]
    bound = batch_task(step.task).with_options(**RETRIES)
    runs = []
    weights = [max(1, getattr(jobs[number], "weight", 1)) for number in left]
    for numbers in cut_batches(left, weights, MOST_TASKS):
        some, called = [jobs[number] for number in numbers], [names[number] for number in numbers]
        batch = Batch(some, called, step.output_dir, step.verify, step.refresh)
        runs.append((bound, batch_name(called), {"batch": batch}, dict(zip(called, some, strict=True))))

    def show(name: str, future: PrefectFuture[Made]) -> None:
        made = future.result()
        step.stage.advance(name, made.receipts, reused=made.reused)

    made = iter(receipt for batch in _run(step, runs, show) for receipt in batch.receipts)
    return [next(made) if receipt is None else receipt for receipt in found]


def _run(
    step: _Step,
    runs: Sequence[tuple[Task[..., R], str, dict[str, Any], dict[str, Any]]],
    show: Callable[[str, PrefectFuture[R]], None],
) -> list[R]:
    """Run tasks on the flow's task runner; return their results in order.

    Args:
        runs: of each its task, its name, its parameters, and the jobs it does by name.
        show: called for each that ended well.
    """
    # Create all before the first one runs: Prefect parses source code for each, and in Python 3.11 two
    # threads that build syntax trees at once collide ("AST constructor recursion depth mismatch").
    tasks = [_named(task, name) for task, name, _, _ in runs]
    futures = [task.submit(**parameters) for task, (_, _, parameters, _) in zip(tasks, runs, strict=True)]
    pool = Pool()
    try:
        _watch([name for _, name, _, _ in runs], futures, pool, show)
        return [future.result() for future in futures]
    except BrokenProcessPool:
        drop_messages()
        jobs = {name: job for _, _, _, jobs in runs for name, job in jobs.items()}
        raise pool.error(step.output_dir, step.task.name, jobs) from None


def run_once(step: Task[..., Any], job: Any) -> Any:
    """Run a step that is not cached, in the flow's own thread."""
    with Stage(step.name, 1) as stage:
        # Quoted, as above: a report knows every receipt.
        result = step.with_options(**RETRIES)(quote(job))
        stage.advance(step.name, [result], reused=0)
    return result


def _named(task: Task[..., R], name: str) -> Task[..., R]:
    # Prefect would fill in braces.
    return task.with_options(task_run_name=name.replace("{", "{{").replace("}", "}}"))


def _watch(
    names: Sequence[str],
    futures: Sequence[PrefectFuture[R]],
    pool: Pool,
    show: Callable[[str, PrefectFuture[R]], None],
) -> None:
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
        show(names[number], future)


def _next(ended: queue.SimpleQueue[int], pool: Pool) -> int:
    while True:
        pool.look()
        with contextlib.suppress(queue.Empty):
            return ended.get(timeout=_LOOK_S)
