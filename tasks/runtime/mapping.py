"""Running steps as Prefect task runs, with receipts for what is worth caching."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from prefect import Task

from schemas.run import Receipt
from tasks.report.reuse import Reuse
from tasks.runtime.cache import bind
from tasks.store.receipts import Verify

log = logging.getLogger("gristmill.runtime")

# What Prefect names the state of a task whose receipt was found.
_CACHED = "Cached"

# Runs one task for each work, in any order; returns their receipts in the order of the works.
Each = Callable[[Task[..., Receipt], Sequence[Any]], list[Receipt]]
# Runs one step that is not cached.
Once = Callable[[Task[..., Any], Any], Any]


def each_with_receipts(
    output_dir: Path, verify: Verify, refresh: bool = False, reuse: Reuse | None = None
) -> Each:
    """A function that maps a step over works on the flow's task runner, cached by receipt.

    It returns the receipts in the order of the works, notes in `reuse` which tasks ran, and raises what the first
    failed task raised.
    """

    def each(step: Task[..., Receipt], works: Sequence[Any]) -> list[Receipt]:
        bound = bind(step, output_dir, verify, refresh)
        futures = [bound.submit(work=work) for work in works]
        receipts = []
        for number, future in enumerate(futures, start=1):
            receipts.append(future.result())
            if reuse is not None:
                reuse.note(step.name, cached=future.state.name == _CACHED)
            if len(futures) > 1:
                log.info("%s %d of %d", step.name, number, len(futures))
        return receipts

    return each


def run_once(step: Task[..., Any], work: Any) -> Any:
    """Run a step that is not cached, in the flow's own thread."""
    return step(work)
