"""Show the progress of a stage: a log line per task, an artifact that is updated, and any other watcher.

Everything happens in the flow's own thread, as tasks end. The artifact is updated at most once a second, because
SQLite answers 503 after bursts. Prefect is imported only if there is a run to report to.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from schemas.run import Receipt

# This log goes to the run's page, not to the terminal, which has bars.
log = logging.getLogger("gristmill.progress")

_UPDATE_S = 1.0


class Watcher(Protocol):
    """An observer of stages, called in the flow's thread."""

    def started(self, stage: str, total: int) -> None:
        """Note that a stage of `total` tasks starts."""
        ...

    def advanced(self, stage: str, done: int, reused: int) -> None:
        """Note how many tasks of a stage are done, and how many of these were reused."""
        ...

    def ended(self, stage: str, done: int, reused: int, seconds: float) -> None:
        """Note that a stage ended after `seconds`."""
        ...


_watchers: list[Watcher] = []


@contextlib.contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Notify `watcher` of all stages of this process while the context is open."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


class Stage:
    """The parts of one step while they are made, by tasks of one part or of many; a context manager.

    Args:
        name: the step's.
        total: number of parts.
        artifact: shows the progress on the run's page; `None` for none.
        clock: returns seconds.
    """

    def __init__(
        self,
        name: str,
        total: int,
        artifact: Callable[[float, str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.total = total
        self.done = self.reused = 0
        self._artifact = artifact
        self._clock = clock
        self._started = self._updated = clock()

    def __enter__(self) -> Stage:
        for watcher in _watchers:
            watcher.started(self.name, self.total)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None or issubclass(kind, Exception):
            self._show()
        for watcher in _watchers:
            watcher.ended(self.name, self.done, self.reused, self._clock() - self._started)

    def advance(self, task: str, results: Sequence[Any], *, reused: int) -> None:
        """Record that a task succeeded, with the result of each of its parts, of which so many were re-used."""
        self.done += len(results)
        self.reused += reused
        more = f", {reused:,} of {len(results):,} re-used" if reused else ""
        log.info("%s: %s", task, "re-used" if reused == len(results) else described(results) + more)
        for watcher in _watchers:
            watcher.advanced(self.name, self.done, self.reused)
        if self.done < self.total and self._clock() - self._updated >= _UPDATE_S:
            self._show()

    def _show(self) -> None:
        self._updated = self._clock()
        if self._artifact is not None and self.total:
            reused = f", {self.reused} re-used" if self.reused else ""
            self._artifact(100 * self.done / self.total, f"{self.name}: {self.done} of {self.total}{reused}")


def described(results: Sequence[Any]) -> str:
    """Describe the results of a finished task in a few words.

    >>> described([None])
    'done'
    """
    receipts = [result for result in results if isinstance(result, Receipt)]
    if not receipts:
        return "done"
    parts = []
    ledgers = [receipt.ledger for receipt in receipts if receipt.ledger is not None]
    if ledgers:
        parts.append(f"{sum(ledger.rows_in for ledger in ledgers):,} rows")
        if rejected := sum(ledger.rows_rejected for ledger in ledgers):
            parts.append(f"{rejected:,} rejected")
    parts.append(f"{sum(record.bytes for receipt in receipts for record in receipt.files) / 1e6:,.1f} MB")
    return ", ".join(parts)


class ProgressArtifact:
    """A progress artifact of the current flow run, created when there is first something to show.

    Progress is not worth failing for: once the server refuses, the artifact stays as it is.
    """

    def __init__(self, step: str) -> None:
        self._step = step
        self._id: Any = None
        self._works = True

    def __call__(self, percent: float, description: str) -> None:
        from prefect.artifacts import create_progress_artifact, update_progress_artifact
        from prefect.context import FlowRunContext

        context = FlowRunContext.get()
        if not self._works or context is None or context.flow_run is None or context.flow is None:
            return
        try:
            if self._id is None:
                key = re.sub(r"[^a-z0-9]+", "-", f"{context.flow.name}-{self._step}".lower())
                self._id = create_progress_artifact(percent, key=key, description=description)
            else:
                update_progress_artifact(self._id, percent, description=description)
        except Exception as error:
            self._works = False
            log.debug("cannot show further progress of %s: %s", self._step, error)
