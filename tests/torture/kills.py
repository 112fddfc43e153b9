"""A driver, one of its worker processes or its server is killed in mid-work; then the run is resumed to its end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from torture.events import before
from torture.kit import Work
from torture.room import Failed, Room

_SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
_PROCESS_S = 100.0


def attempt(room: Room) -> None:
    """Every twelfth kill is of real processes; the others are of forks, which cost a tenth."""
    work = room.kit.work(room.number)
    place = room.number % 13
    if room.kit.server is not None and place == 11:
        _kill_process(room, work, room.kit.server)
    elif room.kit.server is not None and place == 12 and room.number % 3 == 0:
        _kill_process(room, work, room.folder / "state")
    else:
        _kill_fork(room, work, at_time=place > 7)


def _kill_fork(room: Room, work: Work, at_time: bool) -> None:
    out = room.folder / "out"
    number = room.rng.choice(_SIGNALS)
    room.what = (
        f"{signal.Signals(number).name} of {work.name} {'at a time' if at_time else 'before a change'}"
    )
    # A run may be published before, so that `latest` is moved in mid-work.
    if room.rng.random() < 0.3:
        work.finish(room, out, changed=True)
    for _ in range(room.rng.choice((1, 1, 2, 3))):
        if at_time:
            ended = work.run(room, out, kill=(work.seconds * room.rng.uniform(0.05, 1.1), number))
        else:
            moment = room.rng.randint(1, work.changes)
            ended = work.run(room, out, fault=before(out, moment, lambda _: os.kill(os.getpid(), number)))
        room.judged(ended, killed=True)
        room.done += not ended.ok
        room.orphans()
        work.check_view(out)
    work.finish(room, out)


def _kill_process(room: Room, work: Work, state: Path) -> None:
    """Kill a part of a real run: driver, worker process or embedded server."""
    embedded = state != room.kit.server
    part = room.rng.choice(("driver", "worker", "server") if embedded else ("driver", "worker"))
    runner = "processes" if part == "worker" else room.rng.choice(("threads", "processes"))
    number = signal.SIGKILL if part != "driver" else room.rng.choice(_SIGNALS)
    room.what = f"{number.name} of a {part} process, {'embedded' if embedded else 'local'} server"
    out = room.folder / "out"
    arguments = work.arguments(room, out, "--runner", runner, "--workers", "2")
    variables = {"GRISTMILL_STATE_DIR": str(state)}
    running = room.start(*arguments, **variables)
    driver = psutil.Process(running.pid)
    begun = _until(driver, lambda: any(out.glob("stages/*/*")))
    victim = driver
    if part == "server":
        victim = next((one for one in _below(driver) if "--embedded" in one[1]), (driver, ""))[0]
        if victim is driver and begun:
            raise Failed("campaign", f"no server found among {[line for _, line in _below(driver)]}")
    elif part == "worker":
        _until(driver, lambda: any("spawn_main" in line for _, line in _below(driver)))
        workers = [one for one, line in _below(driver) if "spawn_main" in line]
        victim = room.rng.choice(workers) if workers else driver
    time.sleep(room.rng.uniform(0, 1.5))
    try:
        victim.send_signal(number)
        room.done += 1
    except psutil.NoSuchProcess:
        room.notes.append("the run had ended before")
    ended = room.judged(room.wait(running, timeout_s=_PROCESS_S), killed=victim is driver)
    room.notes.append(ended.said)
    room.orphans()
    known = work.check_view(out)
    if ended.ok and known is None:
        raise Failed("silent success", "exit 0 without a published run")
    again = room.judged(room.wait(room.start(*arguments, **variables), timeout_s=_PROCESS_S))
    if not again.ok:
        raise Failed("not resumable", again.said)
    room.orphans()
    work.check_whole(room, out)


def _below(process: psutil.Process) -> list[tuple[psutil.Process, str]]:
    found = []
    for one in process.children(recursive=True):
        try:
            found.append((one, " ".join(one.cmdline())))
        except psutil.NoSuchProcess:
            continue
    return found


def _until(driver: psutil.Process, condition: Callable[[], bool]) -> bool:
    """Wait for a condition while the driver runs."""
    while not condition():
        try:
            if driver.status() == psutil.STATUS_ZOMBIE:
                return False
        except psutil.NoSuchProcess:
            return False
        time.sleep(0.02)
    return True
