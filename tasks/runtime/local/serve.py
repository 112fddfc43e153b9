"""The process of a local Prefect server, embedded or in the background.

    python -m tasks.runtime.local.serve --socket FD [--embedded]

The socket is bound and listening before this process starts: nobody can take the port in between, and early
connections wait. An embedded server ends when its standard input does, which the kernel sees to however the run
that holds the other end ends, `kill -9` included; it has no UI.

The UI of a server in the background may load from that server alone (`Content-Security-Policy`): no logo, font or
image of an artifact reaches out. Lists that the server would fetch from the internet come from its own package.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

_GRACE_S = 3
_POLICY = (
    "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; connect-src 'self' ws://127.0.0.1:* "
    "data: blob:; form-action 'self'; base-uri 'self'; frame-ancestors 'self'; object-src 'none'"
)

Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[..., Awaitable[Message]], Callable[..., Awaitable[None]]], Awaitable[None]]


def main() -> None:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--embedded", action="store_true")
    options = parser.parse_args()

    serving: list[Any] = []
    if options.embedded:
        threading.Thread(target=_end_with_run, args=(serving,), name="end-with-run", daemon=True).start()

    import uvicorn
    from prefect.server.api.server import create_app

    app = create_app(ephemeral=options.embedded, final=True)
    _keep_collections_local()
    config = uvicorn.Config(
        loads_from_itself(app), log_level="warning", lifespan="on", timeout_graceful_shutdown=_GRACE_S
    )
    serving.append(uvicorn.Server(config))
    serving[0].run(sockets=[socket.socket(fileno=options.socket)])


def _end_with_run(serving: list[Any]) -> None:
    """End this process when standard input ends: at once before it serves, then within `_GRACE_S`."""
    while sys.stdin.buffer.read(1):
        pass
    if serving and serving[0].started:
        # What it was sent last is still on its way to the database.
        serving[0].should_exit = True
        time.sleep(_GRACE_S)
    os._exit(1)


def _keep_collections_local() -> None:
    """The catalogue of worker types, which Prefect asks GitHub for, from the files it falls back on."""
    from prefect.server.api import collections

    folder = Path(collections.__file__).parent / "collections_data" / "views"
    views = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")}
    # Without the address of a view there is nothing to ask; what is not on disk is answered by "not found".
    collections.KNOWN_VIEWS.clear()
    collections.GLOBAL_COLLECTIONS_VIEW_CACHE = views  # type: ignore[assignment]


def loads_from_itself(app: App) -> App:
    """The app, with a policy that lets a browser load from it and nowhere else."""

    async def guarded(scope: Message, receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        async def send_with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"content-security-policy", _POLICY.encode()),
                    (b"referrer-policy", b"no-referrer"),
                ]
            await send(message)

        await app(scope, receive, send_with_policy)

    return guarded


if __name__ == "__main__":
    main()
