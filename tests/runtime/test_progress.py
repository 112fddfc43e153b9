"""Progress: what watchers are told, and what ends up on stderr."""

from __future__ import annotations

import io
import logging

import pytest

from flows.cli.progress import PlainProgress, showing_progress
from schemas.run import FileRecord, Receipt, RowLedger
from tasks.runtime.progress import Stage, described


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def run_stage(shown: list[tuple[float, str]], clock: Clock, tasks: int, each_s: float) -> None:
    with Stage("write", tasks, lambda percent, text: shown.append((percent, text)), clock) as stage:
        for number in range(tasks):
            clock.now += each_s
            stage.advance(f"write {number}", [None], reused=number == 0)


def test_the_artifact_moves_at_most_once_a_second_and_ends_full() -> None:
    shown: list[tuple[float, str]] = []
    run_stage(shown, Clock(), 100, 0.25)
    assert len(shown) == 25
    assert shown[0] == (4.0, "write: 4 of 100, 1 re-used") and shown[-1] == (
        100.0,
        "write: 100 of 100, 1 re-used",
    )
    assert [percent for percent, _ in shown] == sorted(percent for percent, _ in shown)


def test_a_failed_stage_shows_how_far_it_came() -> None:
    shown: list[tuple[float, str]] = []
    with pytest.raises(ValueError), Stage("write", 4, lambda *said: shown.append(said), Clock()) as stage:
        stage.advance("write 0", [None], reused=False)
        raise ValueError
    assert shown == [(25.0, "write: 1 of 4")]


def test_one_line_a_task_says_what_it_made(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipt = Receipt(
        task="write",
        stage="0" * 16,
        part=0,
        files=(FileRecord(path="stages/x/y", bytes=2_500_000, sha256="0" * 64),),
        ledger=RowLedger(rows_in=1_200, rows_used=1_197, rejected={"bad": 3}),
    )
    assert described([receipt]) == "1,200 rows, 3 rejected, 2.5 MB"
    log = logging.Logger("alone")
    log.addHandler(caplog.handler)
    monkeypatch.setattr("tasks.runtime.progress.log", log)
    with Stage("write", 2) as stage:
        stage.advance("write a 1/2", [receipt], reused=True)
        stage.advance("write a 2/2", [receipt], reused=False)
    assert caplog.messages == [
        "write a 1/2: re-used",
        "write a 2/2: 1,200 rows, 3 rejected, 2.5 MB",
    ]


def test_plain_lines_are_few() -> None:
    lines: list[str] = []
    clock = Clock()
    plain = PlainProgress(lines.append, clock)
    plain.started("write", 60)
    for done in range(1, 61):
        clock.now += 1
        plain.advanced("write", done, 2)
    plain.ended("write", 60, 2, 60.0)
    plain.started("screen", 0)
    plain.ended("screen", 0, 0, 0.0)
    plain.started("fails", 3)
    plain.ended("fails", 1, 0, 1.0)
    assert lines == [f"write: {n} of 60" for n in (10, 20, 30, 40, 50)] + ["write: 60 in 60.0 s, 2 reused"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_bars_and_log_lines_above_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TERM", "xterm"), ("COLUMNS", "120")):
        monkeypatch.setenv(name, value)
    stream = Terminal()
    handler = logging.StreamHandler(stream)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        with showing_progress(stream):
            assert handler not in root.handlers
            with Stage("write", 2) as stage:
                stage.advance("write 0", [None], reused=True)
                logging.getLogger("gristmill.test").warning("said [bold]in[/bold] between")
                stage.advance("write 1", [None], reused=False)
        assert handler in root.handlers
    finally:
        root.removeHandler(handler)
    shown = stream.getvalue()
    assert "2/2" in shown and "1 reused" in shown and "said [bold]in[/bold] between" in shown


def test_a_pipe_gets_lines_without_escapes() -> None:
    stream = io.StringIO()
    with showing_progress(stream), Stage("plan", 1) as stage:
        stage.advance("plan", [None], reused=False)
    assert stream.getvalue().startswith("plan: 1 in ") and "\x1b" not in stream.getvalue()
