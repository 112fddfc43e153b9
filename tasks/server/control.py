"""Implement `up`, `status` and `down`: a server, a worker and the deployments, in the background.

The record is written, and processes are started and ended, only under the state folder's lock:
two `up` at once start one server.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from schemas.errors import WorkError
from tasks.server.deploy import (
    client_environment,
    deploy,
    deployments,
    deployments_digest,
    make_pool,
    worker_command,
    worker_online,
)
from tasks.server.http import wait_until
from tasks.server.launch import (
    START_TIMEOUT_S,
    api_url,
    listening_socket,
    server_command,
    server_environment,
)
from tasks.server.processes import MARK, Started, end, marked, start_apart
from tasks.server.state import Record, State
from tasks.server.tokens import AUTH_VARIABLE, LINK_MINUTES, new_token, one_time_link

Say = Callable[[str], None]
_OLDER = (
    "the server was started by an older version, so any user or web page of this computer can command it; "
    "once its runs have ended"
)


@dataclass(frozen=True)
class Status:
    """The state of the server and its parts, seen from outside.

    Attributes:
        record: what `up` last started, if anything.
        server, worker: whether the process is running.
        healthy: whether the server answers.
        online: whether the worker reports to the server.
        deployments: `flow/deployment` of each.
        schedules: how many schedules are switched on.
    """

    state: State
    record: Record | None = None
    server: bool = False
    worker: bool = False
    healthy: bool = False
    online: bool = False
    deployments: tuple[str, ...] = ()
    schedules: int = 0

    @property
    def ok(self) -> bool:
        """Whether everything is up."""
        return self.healthy and self.worker and self.online and bool(self.deployments)

    def as_dict(self) -> dict[str, Any]:
        """Return the status for scripts, without a secret; `pid` is null for a process that is not running."""
        record = self.record
        return {
            "ok": self.ok,
            "running": self.healthy,
            "api": record.url if record else None,
            "url": record.url if record else None,
            "ui": record.ui if record else None,
            "server": {"pid": record.server.pid if record and self.server else None, "healthy": self.healthy},
            "worker": {
                "pid": record.worker.pid if record and record.worker and self.worker else None,
                "online": self.online,
            },
            "deployments": list(self.deployments),
            "schedules_on": self.schedules,
            "state": str(self.state.folder),
        }

    def lines(self, command: str = "gristmill") -> list[str]:
        """Return the status as lines for people, with a new link that opens the UI once.

        Args:
            command: how to call Gristmill in the reader's shell.
        """
        if self.record is None:
            return [f"nothing is running; start it with: {command} up"]
        seen = self.as_dict()
        server = _words(seen["server"]["pid"], self.healthy, "answers", "does not answer")
        worker = _words(seen["worker"]["pid"], self.online, "is online", "is not responding")
        on = f"{self.schedules} schedules on" if self.schedules else "no schedule is on"
        return [
            f"ui           {self._link()}",
            f"api          {self.record.url}",
            f"server       {server}",
            f"worker       {worker}",
            f"deployments  {len(self.deployments)}, {on}",
            f"files        {self.state.files}",
            f"logs         {self.state.log('server')}, {self.state.log('worker')}",
            f"stop it      {command} down",
            *([] if self.ok else [f"Partly down; run `{command} up` to fix"]),
            *([] if self.record.token else [f"{_OLDER}, run `{command} down`, then `{command} up`"]),
        ]

    def _link(self) -> str:
        if self.record is None or not self.healthy or not self.record.token:
            return self.record.ui if self.record else ""
        return f"{one_time_link(self.record.ui, self.record.token)} (once, within {LINK_MINUTES} minutes)"

    def exports(self) -> list[str] | None:
        """Return shell commands that point Prefect's clients at the server; nothing if it does not answer."""
        if self.record is None or not self.healthy:
            return None
        values = {"PREFECT_API_URL": self.record.url, AUTH_VARIABLE: self.record.token}
        return [f"export {name}={shlex.quote(value)}" for name, value in values.items()]


def _words(pid: int | None, well: bool, yes: str, no: str) -> str:
    return "is not running" if pid is None else f"pid {pid}, {yes if well else no}"


def up(state: State, port: int | None = None, say: Say = lambda line: None) -> Status:
    """Start what is not running; leave the rest alone.

    Args:
        state: the state folder.
        port: port for a new server; by default the usual one, or any free one.
        say: called with a description of each action.

    Raises:
        ConfigError: code `port_in_use`.
        StorageError: the state folder cannot be used.
        WorkError: a part did not start; the message includes its output.
    """
    digest = deployments_digest()
    state.create()
    with state.locked(), ThreadPoolExecutor(1) as aside:
        inputs = aside.submit(_write_inputs, state)
        record = state.read()
        if record is None or not record.answers(timeout_s=10.0):
            record = _start_server(state, record, port, say)
        elif not record.token:
            raise _unprotected(record)
        make_pool(record)
        if record.worker is None or not record.worker.running:
            say("starting the worker")
            record = _start_worker(state, record)
        inputs.result()
        if record.deployed != digest or not deployments(record):
            say("deploying the flows")
            deploy(state, record)
            record = replace(record, deployed=digest)
            state.write(record)
        started, worker = record, record.worker
        assert worker is not None  # noqa: S101 - started above
        wait_until(lambda: not worker.running or worker_online(started), START_TIMEOUT_S)
        if not worker.running:
            raise _failed(state, "worker")
    return status(state)


def status(state: State) -> Status:
    """Return what is running now, without changing anything."""
    record = state.read()
    if record is None:
        return Status(state)
    seen = Status(
        state,
        record,
        server=record.server.running,
        worker=record.worker is not None and record.worker.running,
        healthy=record.answers(),
    )
    if not seen.healthy:
        return seen
    found = deployments(record)
    return replace(
        seen,
        online=worker_online(record),
        deployments=tuple(sorted(entry["name"] for entry in found)),
        schedules=sum(schedule["active"] for entry in found for schedule in entry["schedules"]),
    )


def down(state: State) -> int:
    """End the worker with its runs, then the server; return how many processes there were.

    The worker ends first, so that runs can still report their end to the server.
    """
    if not state.folder.exists():
        return 0
    with state.locked():
        return _end_all(state)


def _end_all(state: State, record: Record | None = None) -> int:
    record = record or state.read()
    recorded = [] if record is None else [part for part in (record.worker, record.server) if part is not None]
    server = None if record is None else record.server
    # Everything the worker started, even if it was killed since, carries the mark.
    found = {process.pid: process for process in [*recorded, *marked(str(state.folder))] if process.running}
    end([process for process in found.values() if process != server])
    end([process for process in found.values() if process == server])
    state.forget()
    return len(found)


def _start_server(state: State, before: Record | None, port: int | None, say: Say) -> Record:
    say("starting the server")
    # Half a server, or the worker of one that is gone, is of no use.
    _end_all(state, before)
    with listening_socket(port) as listener:
        url, token = api_url(listener), new_token()
        environ = server_environment(state, url, token) | {MARK: str(state.folder)}
        server = start_apart(
            server_command(listener), environ, state.log("server"), state.folder, (listener.fileno(),)
        )
    record = Record(url, token, server, deployed=before.deployed if before else "")
    state.write(record)
    wait_until(lambda: not server.running or record.answers(), START_TIMEOUT_S)
    if not record.answers(timeout_s=10.0):
        _end_all(state)
        raise _failed(state, "server")
    return record


def _start_worker(state: State, record: Record) -> Record:
    worker: Started = start_apart(
        worker_command(), client_environment(state, record), state.log("worker"), state.files
    )
    record = replace(record, worker=worker)
    state.write(record)
    return record


def _unprotected(record: Record) -> WorkError:
    """Say that a server has no token; a restart would end its runs, so that is left to the user."""
    return WorkError(
        f"{_OLDER}, run `gristmill down`, then `gristmill up`",
        code="unprotected_server",
        where=record.url,
    )


def _failed(state: State, name: str) -> WorkError:
    log = state.log(name)
    said = log.read_text(errors="replace").strip()[-2000:]
    return WorkError(f"the {name} did not start; it said: {said}", code=f"no_{name}", where=str(log))


def _write_inputs(state: State) -> None:
    from tasks.demo.inputs import write_inputs

    write_inputs(state.files / "demo-output" / "inputs")
