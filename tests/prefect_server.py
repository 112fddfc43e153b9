"""A real Prefect server for tests, which never outlives the process that asked for it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.runtime.settings import quiet_environment
from tasks.server.embedded import EmbeddedServer
from tasks.server.http import call
from tasks.server.state import State


@contextlib.contextmanager
def prefect_server(folder: Path) -> Iterator[str]:
    """Start a server with its own home and database, and point this process and its children at it.

    Works whether or not prefect was imported before.

    Args:
        folder: an empty folder.

    Yields:
        The API URL.
    """
    state = State(folder)
    server = EmbeddedServer(state)
    try:
        with _pointed_at(server, state.home):
            yield server.url
    finally:
        server.stop()


@contextlib.contextmanager
def _pointed_at(server: EmbeddedServer, home: Path) -> Iterator[None]:
    before = dict(os.environ)
    os.environ |= {
        "PREFECT_API_URL": server.url,
        "PREFECT_API_AUTH_STRING": server.token,
        "PREFECT_HOME": str(home),
    }
    quiet_environment()
    try:
        # Only now: the environment is read on import.
        from prefect.context import refresh_global_settings_context
        from prefect.settings import (
            PREFECT_API_AUTH_STRING,
            PREFECT_API_URL,
            PREFECT_HOME,
            temporary_settings,
        )

        # The global settings serve threads without a context, the temporary ones a context that is active.
        refresh_global_settings_context()
        own = {PREFECT_API_URL: server.url, PREFECT_API_AUTH_STRING: server.token, PREFECT_HOME: home}
        with temporary_settings(own):
            yield
        _finish_sending()
    finally:
        os.environ.clear()
        os.environ.update(before)
        refresh_global_settings_context()


def ask(url: str, body: Any = None) -> Any:
    """The answer of the server that this process is pointed at."""
    return call(url, body, timeout_s=30, token=os.environ["PREFECT_API_AUTH_STRING"])


def _finish_sending() -> None:
    """Send the last logs and events while the server is there; at exit it would be gone."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for worker in (EventsWorker, APILogWorker):
        worker.drain_all(timeout=10)
