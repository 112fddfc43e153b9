"""Run a Prefect server for the runs of one process, which it never outlives.

The server reads from a pipe that this process keeps open. The kernel closes it when this process ends, in whatever
way, and the server then ends. It shares the database of the background server, so runs made without that
one appear later in its UI.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from schemas.errors import WorkError
from tasks.runtime.stopping import last_acts
from tasks.server.http import answers, wait_until
from tasks.server.launch import (
    START_TIMEOUT_S,
    api_url,
    listening_socket,
    server_command,
    server_environment,
)
from tasks.server.processes import private_file
from tasks.server.state import State
from tasks.server.tokens import new_token
from tasks.storage.flock import locked

logger = logging.getLogger("gristmill.server")

# Longer than the server takes to end by itself, and together with the grace of an interrupted run within 10 s.
_STOP_S = 4.0
# Longer than a start takes on a machine that is not overloaded.
_SAY_S = 30.0


class EmbeddedServer:
    """A server in a child process, up once this object exists.

    Raises:
        WorkError: code `no_server`; it did not start. The message ends with its output.
    """

    def __init__(self, state: State) -> None:
        state.create()
        log = state.folder / f"embedded-{os.getpid()}.log"
        with listening_socket(None, usual=False) as listener, _making_the_database(state):
            self.url, self.token = api_url(listener), new_token()
            with private_file(log) as output:
                self._process = subprocess.Popen(
                    server_command(listener, "--embedded"),
                    env=server_environment(state, self.url, self.token)
                    | {"PREFECT_SERVER_UI_ENABLED": "false"},
                    cwd=state.folder,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    # Ctrl-C in the terminal is meant for the run, which still has to report its end.
                    start_new_session=True,
                    pass_fds=(listener.fileno(),),
                )
            # In whatever way this process ends.
            atexit.register(self.stop)
            last_acts.append(self.stop)
            try:
                self._wait(log)
            finally:
                # On Unix the server can still write to it; nobody needs its name.
                log.unlink(missing_ok=True)

    def _wait(self, log: Path) -> None:
        healthy = False

        def decided() -> bool:
            nonlocal healthy
            ended = self._process.poll() is not None
            healthy = not ended and self._answers()
            return healthy or ended

        if not wait_until(decided, _SAY_S):
            logger.warning(
                "waiting for the embedded Prefect server to start, for up to %.0f s", START_TIMEOUT_S
            )
            wait_until(decided, START_TIMEOUT_S - _SAY_S)
        if healthy:
            return
        why = self.ended() or f"does not answer after {START_TIMEOUT_S:.0f} s"
        said = log.read_text(errors="replace").strip()[-2000:] or "nothing"
        self.stop()
        raise WorkError(
            f"the embedded Prefect server did not start: it {why}; it said: {said}", code="no_server"
        )

    def _answers(self) -> bool:
        return answers(self.url, self.token)

    def ended(self) -> str | None:
        """Return how the server's process ended, or `None` while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def stop(self) -> None:
        """Let the server store what it received last, and end it."""
        atexit.unregister(self.stop)
        assert self._process.stdin is not None  # noqa: S101 - it was opened above
        self._process.stdin.close()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        # Only now: this process may be ended while it waits, and a suspended server would be left.
        last_acts[:] = [act for act in last_acts if act != self.stop]


@contextlib.contextmanager
def _making_the_database(state: State) -> Iterator[None]:
    """Start one embedded server at a time: two would both create the tables of a new database."""
    with locked(state.home / ".starting", 0o600):
        yield
