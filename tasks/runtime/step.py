"""Make the Prefect tasks of a domain from its kernels: each calls one kernel and returns its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from prefect import Task, task

from schemas.run import Receipt
from tasks.run.contract import Job, do

J = TypeVar("J", bound=Job)
R = TypeVar("R")


def step(name: str, kernel: Callable[[J], Receipt]) -> Task[..., Receipt]:
    """Make the task of a cached step.

    Args:
        name: as receipts, run names and the report have it.
        kernel: makes the files of one job and returns `job.receipt(...)`.
    """

    def run(job: J) -> Receipt:
        return do(kernel, job)

    _describe(run, name, kernel)
    return task(name=name)(run)


def check(name: str, kernel: Callable[[Any], R]) -> Task[..., R]:
    """Make the task of a step that is not cached, such as the validation of what is about to be published."""

    def run(job: Any) -> R:
        return kernel(job)

    _describe(run, name, kernel)
    return task(name=name, persist_result=False)(run)


def _describe(run: Callable[..., Any], name: str, kernel: Callable[..., Any]) -> None:
    # Prefect tells tasks apart, and describes them, by what their functions say of themselves.
    run.__name__ = run.__qualname__ = name
    run.__doc__ = kernel.__doc__
