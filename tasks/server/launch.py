"""Start the process of a local server."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import MutableMapping
from pathlib import Path

from schemas.errors import ConfigError
from tasks.runtime.settings import quiet_environment
from tasks.server.state import State
from tasks.server.tokens import AUTH_VARIABLE

LOOPBACK = "127.0.0.1"
USUAL_PORT = 4200
# Longer than any observed start: 8 s with a new database on two cores, several times that on a loaded machine.
START_TIMEOUT_S = 120.0

_ROOT = Path(__file__).resolve().parents[2]


def listening_socket(port: int | None, usual: bool = True) -> socket.socket:
    """Open a listening loopback socket: on `port`, else on Prefect's usual port, else on any free one.

    Args:
        port: the required port, if any.
        usual: if no port is required, try the usual one first.

    Raises:
        ConfigError: code `port_in_use`; the required port is taken.
    """
    for candidate in (port,) if port else (USUAL_PORT, 0) if usual else (0,):
        listener = socket.socket()
        # Connections of a server that has just ended would otherwise block the port for a minute.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, candidate))
            listener.listen(128)
            return listener
        except OSError:
            listener.close()
    raise ConfigError(
        f"port {port} is taken; choose another, or leave it out for any that is free",
        code="port_in_use",
        where="--port",
    )


def api_url(listener: socket.socket) -> str:
    """Return the URL of the API that a server on this socket offers."""
    return f"http://{LOOPBACK}:{listener.getsockname()[1]}/api"


def server_command(listener: socket.socket, *options: str) -> list[str]:
    """Return the command that serves on this socket."""
    return [sys.executable, "-m", "tasks.server.serve", "--socket", str(listener.fileno()), *options]


def server_environment(state: State, url: str, token: str) -> dict[str, str]:
    """Return the environment of a server: its own home and database, and no settings for another server."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environ |= {
        "PREFECT_HOME": str(state.home),
        "PREFECT_API_URL": url,
        AUTH_VARIABLE: token,
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{state.home}/prefect.db",
    }
    quiet_environment(environ)
    importable(environ)
    return environ


def importable(environ: MutableMapping[str, str]) -> None:
    """Let a child import this code even if it is not installed, and never a namesake in its working directory."""
    environ["PYTHONSAFEPATH"] = "1"
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), environ.get("PYTHONPATH")]))
