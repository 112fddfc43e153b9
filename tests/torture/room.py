"""Where one try takes place: commands in processes of their own, and the one judgement of how they end.

The campaign has imported everything once; a command of a try is a fork of it that calls the real command line with
`run_flow` replaced by the story without a server, and costs milliseconds where a fresh start would take seconds.
`start` runs a real process where a try needs one.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NoReturn

import psutil
from workloads import command, environment

if TYPE_CHECKING:
    from torture.kit import Kit

HANG_S = 60.0
# A worker may take 1.2 GB (`MAX_ROW_BYTES` in schemas/sft.py), and what the campaign has imported counts as well.
MEMORY_BYTES = 2 << 30
_ORPHAN_S = 20.0
_CODED = re.compile(r"^gristmill: (\[[a-z0-9_]+\])", re.MULTILINE)
_NATIVE = (
    "Traceback (most recent call last)",
    "[internal]",
    "panicked at",
    "terminate called",
    "Fatal Python",
)
_PR_SET_CHILD_SUBREAPER = 36


class Failed(Exception):  # noqa: N818 - a verdict on the tried, not a fault of the campaign
    """A rule is broken; the rules are the ones that the table counts."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule
        self.what = what


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code (-9 for a kill), what it printed, time and memory it took."""

    code: int
    out: str
    err: str
    seconds: float
    peak_bytes: int

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def error(self) -> str:
        """The code of its error, without brackets."""
        found = _CODED.search(self.err)
        return found[1].strip("[]") if found else ""

    @property
    def said(self) -> str:
        """The end of what it said, for a message."""
        return f"exit {self.code}: {' | '.join(self.err.strip().splitlines()[-3:])[-600:]}"


@dataclass
class Room:
    """One try.

    Attributes:
        rng: its randomness, which follows from seed, kind and number alone.
        folder: an empty folder.
        what: what is tried, a line of the table.
        done: how many kills, faults, damages, inputs or rows it came to.
        slowest_s, peak_bytes: over its commands.
    """

    kit: Kit
    kind: str
    number: int
    rng: Random
    folder: Path
    what: str = ""
    done: int = 0
    slowest_s: float = 0.0
    peak_bytes: int = 0
    notes: list[str] = field(default_factory=list)
    _commands: int = 0

    def run(
        self,
        *arguments: str | Path,
        fault: Callable[[], None] | None = None,
        kill: tuple[float, int] | None = None,
        timeout_s: float = HANG_S,
    ) -> Ended:
        """Run a command in a fork.

        Args:
            fault: called in the fork before the command.
            kill: seconds after its start, and the signal that it gets then.

        Raises:
            Failed: `hang`.
        """
        return self.wait(self.begin(*arguments, fault=fault), kill, timeout_s)

    def begin(self, *arguments: str | Path, fault: Callable[[], None] | None = None) -> Running:
        """Start a command in a fork."""
        out, err = self._streams()
        pid = os.fork()
        if pid == 0:
            _command(arguments, fault, out, err)
        return Running(pid, out, err, time.monotonic())

    def start(self, *arguments: str | Path, **variables: str) -> Running:
        """Start a real command, in a process group of its own."""
        out, err = self._streams()
        base = {key: value for key, value in environment().items() if not key.startswith("PREFECT_")}
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                command(*arguments), stdout=stdout, stderr=stderr, env=base | variables, process_group=0
            )
        process.returncode = 0  # reaped by `wait`
        return Running(process.pid, out, err, time.monotonic())

    def _streams(self) -> tuple[Path, Path]:
        self._commands += 1
        name = f"command-{self._commands}"
        return self.folder / f"{name}.out", self.folder / f"{name}.err"

    def wait(
        self, running: Running, kill: tuple[float, int] | None = None, timeout_s: float = HANG_S
    ) -> Ended:
        """Wait for the end of a command, perhaps send it a signal."""
        pid, started = running.pid, running.started
        while True:
            found, status, usage = os.wait4(pid, os.WNOHANG)
            if found:
                break
            passed = time.monotonic() - started
            if kill is not None and passed >= kill[0]:
                os.kill(pid, kill[1])
                kill = None
            if passed > timeout_s:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                os.wait4(pid, 0)
                last = " | ".join(running.err.read_text(errors="replace").strip().splitlines()[-2:])
                raise Failed("hang", f"no end after {timeout_s:g} s; it said last: {last[-300:]}")
            time.sleep(0.005)
        ended = Ended(
            os.waitstatus_to_exitcode(status),
            running.out.read_text(errors="replace"),
            running.err.read_text(errors="replace"),
            time.monotonic() - started,
            usage.ru_maxrss * 1024,
        )
        self.slowest_s = max(self.slowest_s, ended.seconds)
        self.peak_bytes = max(self.peak_bytes, ended.peak_bytes)
        return ended

    def judged(self, ended: Ended, *, killed: bool = False) -> Ended:
        """A command that was not killed ends with 0 or a coded error, and stays in bounds.

        Args:
            killed: it was to be killed, or asked to stop; whether that came in time is open.

        Raises:
            Failed: `traceback`, `memory`.
        """
        for sign in _NATIVE:
            if sign in ended.err:
                raise Failed("traceback", ended.said)
        if ended.peak_bytes > MEMORY_BYTES:
            raise Failed("memory", f"{ended.peak_bytes >> 20} MB; {ended.said}")
        if ended.ok or (killed and ended.code in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, 130)):
            return ended
        # What `validate` finds is its result, not an error.
        found = ended.code == 3 and ("NOT VALID" in ended.out or '"ok": false' in ended.out)
        if not found and (ended.code not in (1, 2, 3) or not ended.error):
            raise Failed("traceback", f"no coded error: {ended.said}")
        return ended

    def orphans(self) -> None:
        """Wait until nothing that this try started runs any more.

        Raises:
            Failed: `orphan`.
        """
        deadline = time.monotonic() + _ORPHAN_S
        while alive := _descendants():
            if time.monotonic() > deadline:
                names = [" ".join(process.cmdline())[:120] for process in alive]
                for process in alive:
                    process.kill()
                raise Failed("orphan", f"still running after {_ORPHAN_S:g} s: {names}")
            time.sleep(0.05)

    def config(self, raw: dict[str, Any], name: str = "config") -> Path:
        """A configuration file; JSON is YAML."""
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(raw))
        return path


@dataclass(frozen=True)
class Running:
    """A command that was started."""

    pid: int
    out: Path
    err: Path
    started: float


def adopt() -> None:
    """Become the parent of processes whose own parents die: only so can orphans be seen."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _descendants() -> list[psutil.Process]:
    """What is alive of it; the dead are reaped."""
    alive = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
            if process.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(process.pid, os.WNOHANG)
            else:
                alive.append(process)
    return alive


def _command(
    arguments: tuple[str | Path, ...], fault: Callable[[], None] | None, out: Path, err: Path
) -> NoReturn:
    """Be a command: never returns."""
    code = 70
    try:
        os.setpgid(0, 0)
        for path, descriptor in ((out, 1), (err, 2)):
            opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(opened, descriptor)
            os.close(opened)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        from flows.cli import launch, main

        launch.run_flow = _run_serially
        signal.signal(signal.SIGTERM, main.terminate)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = main.interrupt_again
        if fault is not None:
            fault()
        code = main.main([str(argument) for argument in arguments])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        with contextlib.suppress(BaseException):
            traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _run_serially(
    package: str,
    module: str,
    runner: str,
    workers: int,
    address: str | None,
    *,
    config: Any,
    verify: Any,
    force: bool,
) -> Any:
    """`flows.cli.launch.run_flow` with the steps run one after the other, without Prefect's task runs."""
    from support import mill_of

    return mill_of(module.replace("_", "-"), config, verify)[0]


@contextlib.contextmanager
def judging(room: Room) -> Iterator[dict[str, Any]]:
    """What became of a try, filled in at its end: the rule it broke, or nothing."""
    found: dict[str, Any] = {"rule": "", "detail": ""}
    try:
        yield found
        room.orphans()
    except Failed as failed:
        found |= {"rule": failed.rule, "detail": failed.what}
    except BaseException:
        found |= {"rule": "campaign", "detail": traceback.format_exc()[-2000:]}
    found |= {
        "kind": room.kind, "number": room.number, "what": room.what, "done": room.done, "notes": room.notes,
        "slowest_s": round(room.slowest_s, 2), "peak_bytes": room.peak_bytes,
    }  # fmt: skip
