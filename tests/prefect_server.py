"""A real Prefect server for tests, which never outlives the process that asked for it.

Run as a script, this file is the supervisor: it starts the command given to it in a process group of its own
and ends that group when its standard input closes, which happens however the test process ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tasks.runtime.settings import quiet_environment

_START_TIMEOUT_S = 90.0
_TERM_S = 5.0
_ROOT = Path(__file__).resolve().parent.parent


@contextlib.contextmanager
def prefect_server(home: Path) -> Iterator[str]:
    """Start a server with its own home and database, and point this process and its children at it.

    Works whether or not prefect was imported before.

    Args:
        home: an empty folder for `PREFECT_HOME`; `server.log` in it tells what went wrong.

    Yields:
        The API URL.
    """
    home.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    url = f"http://127.0.0.1:{port}/api"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environ |= {
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home}/prefect.db",
        "PREFECT_SERVER_UI_ENABLED": "false",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")])),
    }
    quiet_environment(environ)
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with (home / "server.log").open("wb") as log:
        supervisor = subprocess.Popen(
            [sys.executable, __file__, *command],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    assert supervisor.stdin is not None
    try:
        _wait_until_healthy(url, supervisor, home / "server.log")
        with _pointed_at(url, home):
            yield url
    finally:
        supervisor.stdin.close()
        supervisor.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_healthy(url: str, supervisor: subprocess.Popen[bytes], log: Path) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline and supervisor.poll() is None:
        try:
            with opener.open(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.05)
    raise RuntimeError(f"the Prefect server did not start:\n{log.read_text()[-4000:]}")


@contextlib.contextmanager
def _pointed_at(url: str, home: Path) -> Iterator[None]:
    before = dict(os.environ)
    os.environ |= {"PREFECT_API_URL": url, "PREFECT_HOME": str(home)}
    quiet_environment()
    try:
        # Only now: the environment is read on import.
        from prefect.context import refresh_global_settings_context
        from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

        # The global settings serve threads without a context, the temporary ones a context that is active.
        refresh_global_settings_context()
        with temporary_settings({PREFECT_API_URL: url, PREFECT_HOME: home}):
            yield
        _finish_sending()
    finally:
        os.environ.clear()
        os.environ.update(before)
        refresh_global_settings_context()


def _finish_sending() -> None:
    """Send the last logs and events while the server is there; at exit it would be gone."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for worker in (EventsWorker, APILogWorker):
        worker.drain_all(timeout=10)


def _supervise(command: list[str]) -> int:
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    # The pipe is readable once the test process closes it or dies.
    while child.poll() is None and not select.select([0], [], [], 0.2)[0]:
        pass
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_TERM_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    return child.wait()


if __name__ == "__main__":
    sys.exit(_supervise(sys.argv[1:]))
