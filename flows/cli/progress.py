"""Show the progress of a run on stderr: bars on a terminal, plain lines everywhere else."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

# Where there are no bars, a stage reports its progress at most this often.
_PLAIN_S = 10.0


class PlainProgress:
    """Print a line when a stage ends, and every 10 s while it runs. See `tasks.runtime.progress.Watcher`.

    Args:
        write: prints a line.
        clock: returns the time in seconds.
    """

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._total = 0
        self._said = 0.0

    def started(self, stage: str, total: int) -> None:
        """Note the size of a stage."""
        self._total, self._said = total, self._clock()

    def advanced(self, stage: str, done: int, reused: int) -> None:
        """Print how many tasks are done, unless a line was printed a moment ago."""
        if done < self._total and self._clock() - self._said >= _PLAIN_S:
            self._said = self._clock()
            self._write(f"{stage}: {done} of {self._total}")

    def ended(self, stage: str, done: int, reused: int, seconds: float) -> None:
        """Print how many tasks ran and how many were reused."""
        # If the stage failed, the error says more.
        if done == self._total > 0:
            more = f", {reused} reused" if reused else ""
            self._write(f"{stage}: {done} in {seconds:.1f} s{more}")


class BarProgress:
    """Show a bar for each stage, with its rate and the time left. See `tasks.runtime.progress.Watcher`."""

    def __init__(self, bars: Any) -> None:
        self._bars = bars
        self._tasks: dict[str, Any] = {}

    def started(self, stage: str, total: int) -> None:
        """Add a bar."""
        self._tasks[stage] = self._bars.add_task(stage, total=total, reused="")

    def advanced(self, stage: str, done: int, reused: int) -> None:
        """Move the bar on."""
        self._bars.update(self._tasks[stage], completed=done, reused=f"{reused} reused" if reused else "")

    def ended(self, stage: str, done: int, reused: int, seconds: float) -> None:
        """Stop the bar's clock."""
        self._bars.stop_task(self._tasks[stage])


@contextlib.contextmanager
def showing_progress(stream: TextIO | None = None) -> Iterator[None]:
    """Show the stages of the flow that runs in this context, with its log lines above the bars."""
    from tasks.runtime.progress import watching

    stream = stream or sys.stderr
    if not stream.isatty():
        with watching(PlainProgress(lambda line: print(line, file=stream, flush=True))):
            yield
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Task as Bar
    from rich.text import Text

    class Rate(ProgressColumn):
        """Show the tasks done per second."""

        def render(self, task: Bar) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:.1f}/s", style="progress.data.speed")

    console = Console(file=stream, highlight=False)
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[reused]}", style="dim"),
        console=console,
        refresh_per_second=5,
    )
    with bars, _logging_through(console), watching(BarProgress(bars)):
        yield


@contextlib.contextmanager
def _logging_through(console: Any) -> Iterator[None]:
    """Let the terminal's log handler print above the bars instead of through them."""

    class Above(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            console.print(self.format(record), markup=False, soft_wrap=True)

    root = logging.getLogger()
    replaced = [
        handler
        for handler in root.handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream is console.file
    ]
    above = Above()
    if replaced:
        above.setFormatter(replaced[0].formatter)
        for one in replaced:
            root.removeHandler(one)
            for each in one.filters:
                above.addFilter(each)
        root.addHandler(above)
    try:
        yield
    finally:
        if replaced:
            root.removeHandler(above)
            for one in replaced:
                root.addHandler(one)
