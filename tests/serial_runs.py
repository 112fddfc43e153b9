"""Runs of a flow's story that can be killed: a process that has imported everything forks one child a run.

As a script it reads a job a line from stdin, `{"flow": ..., "config": ..., "die_before": n or null}`, forks, prints
the child's process id, reads a line, waits for the child and prints its exit code and how it changed the output
directory. A fork costs milliseconds where a fresh start would import Prefect and transformers each time.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from workloads import environment

_FAILED = 1


class Runs:
    """Starts children one after the other.

    Attributes:
        events: how the last finished run changed its output directory, a line `event path` each.
        error: what the command line would print of the error that ended the last run, if one did.
    """

    def __init__(self) -> None:
        self.events: list[str] = []
        self.error: dict[str, Any] | None = None
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    @property
    def changes(self) -> int:
        """How often the last finished run changed its output directory."""
        return len(self.events)

    def run(
        self,
        config: dict[str, Any],
        die_before: int | None = None,
        kill_after_s: float | None = None,
        flow: str = "pack-sft",
        limits: dict[str, int] | None = None,
    ) -> int:
        """Run, perhaps into a kill; returns the exit code, -9 for a killed child.

        Args:
            flow: its name on the command line, or `module:attribute` of its entry.
            limits: by name: `NOFILE` is how many files may be open beyond those that are, others are for `setrlimit`.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        job = {"flow": flow, "config": config, "die_before": die_before, "limits": limits or {}}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        pid = int(self._process.stdout.readline())
        if kill_after_s is not None:
            time.sleep(kill_after_s)
            os.kill(pid, signal.SIGKILL)
        # Only now is the child reaped: until here the id is no other process's.
        self._process.stdin.write("reap\n")
        self._process.stdin.flush()
        code, told = json.loads(self._process.stdout.readline())
        self.events, self.error = told.get("events", []), told.get("error")
        return code

    def close(self) -> None:
        self._process.communicate()


def _child(job: dict[str, Any], report: int) -> int:
    from file_events import die, install
    from support import entry_of, mill_of

    from schemas.errors import GristmillError, system_error

    entry = entry_of(job["flow"])
    config = entry.parse(job["config"])
    events: list[str] = []

    def seen(event: str, path: str) -> None:
        events.append(f"{event} {path}")
        if len(events) == job["die_before"]:
            die()

    install(Path(config.output_dir), seen)
    _limit(job["limits"])
    error = None
    try:
        mill_of(entry, config)
    except (GristmillError, OSError) as caught:
        error = caught if isinstance(caught, GristmillError) else system_error(caught)
        if error is None:
            raise
    with os.fdopen(report, "w") as pipe:
        json.dump({"events": events, "error": error and error.as_dict()}, pipe)
    return error.exit_code if error else 0


def _limit(limits: dict[str, int]) -> None:
    for name, value in limits.items():
        # The lowest free number is that of the next file.
        lowest = max(map(int, os.listdir("/proc/self/fd"))) if name == "NOFILE" else 0  # noqa: PTH208
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (lowest + value, lowest + value))


def _serve() -> None:
    # Read once here, forked many times.
    import transformers

    import flows.pack_sft
    import tasks.sft.chat.tokenizer

    # Some are imported only when they are asked for.
    assert transformers.AutoTokenizer and tasks.sft.chat.tokenizer.load_tokenizer and flows.pack_sft.mill
    print("ready", flush=True)
    while line := sys.stdin.readline():
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setpgrp()
            code = _FAILED
            try:
                code = _child(json.loads(line), writer)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(writer)
        print(pid, flush=True)
        sys.stdin.readline()
        with os.fdopen(reader) as pipe:
            told = json.loads(pipe.read() or "{}")
        _, status = os.waitpid(pid, 0)
        print(json.dumps([os.waitstatus_to_exitcode(status), told]), flush=True)


if __name__ == "__main__":
    _serve()
