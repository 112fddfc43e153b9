"""Run the process of a local Prefect server, embedded or in the background.

    python -m tasks.server.serve --socket FD [--embedded]

The socket is already bound and listening when this process starts: nobody can take the port in between, and early
connections wait. The token that requests must carry comes in the environment, which only the user can read. An
embedded server ends when its standard input ends, which the kernel ensures however the run that holds the other end
ends, `kill -9` included; it has no UI.

The server reads lists from its own package instead of fetching them from the internet.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tasks.server.asgi import loads_from_itself, repeats_when_busy
from tasks.server.guard import Guard
from tasks.server.tokens import AUTH_VARIABLE

_GRACE_S = 3


def main() -> None:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--embedded", action="store_true")
    options = parser.parse_args()

    # Not a setting of the server: it shows its settings.
    token = os.environ.pop(AUTH_VARIABLE)
    listener = socket.socket(fileno=options.socket)
    host, port = listener.getsockname()

    serving: list[Any] = []
    if options.embedded:
        threading.Thread(target=_end_with_run, args=(serving,), name="end-with-run", daemon=True).start()

    import uvicorn
    from prefect.server.api.server import create_app

    app = create_app(ephemeral=options.embedded, final=True)
    _keep_collections_local()
    config = uvicorn.Config(
        loads_from_itself(Guard(repeats_when_busy(app), host, port, token), f"{host}:{port}"),
        log_level="warning",
        lifespan="on",
        proxy_headers=False,
        timeout_graceful_shutdown=_GRACE_S,
    )
    serving.append(uvicorn.Server(config))
    serving[0].run(sockets=[listener])


def _end_with_run(serving: list[Any]) -> None:
    """End this process when standard input ends: at once if it is not serving yet, otherwise within `_GRACE_S`."""
    while sys.stdin.buffer.read(1):
        pass
    if serving and serving[0].started:
        # The data it received last may still be on its way to the database.
        serving[0].should_exit = True
        time.sleep(_GRACE_S)
    os._exit(1)


def _keep_collections_local() -> None:
    """Read the catalogue of worker types from Prefect's fallback files instead of from GitHub."""
    from prefect.server.api import collections

    folder = Path(collections.__file__).parent / "collections_data" / "views"
    views = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")}
    # Without the address of a view there is nothing to fetch; a view that is not on disk is "not found".
    collections.KNOWN_VIEWS.clear()
    collections.GLOBAL_COLLECTIONS_VIEW_CACHE = views  # type: ignore[assignment]


if __name__ == "__main__":
    main()
