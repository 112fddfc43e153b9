"""A real Prefect server for tests, which never outlives the process that asked for it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tasks.runtime.settings import quiet_environment
from tasks.server.embedded import EmbeddedServer
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
        with _pointed_at(server.url, state.home):
            yield server.url
    finally:
        server.stop()


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
