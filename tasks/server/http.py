"""Call a Prefect API without importing Prefect, and never through a proxy on loopback."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

from tasks.server.tokens import credentials

_POLL_S = 0.05
_BUSY = 503
_BUSY_PAUSE_S = 0.2


def call(
    url: str, body: Any = None, method: str | None = None, timeout_s: float = 10.0, token: str | None = None
) -> Any:
    """Send a request (POST if there is a body) and return the JSON answer.

    A server on SQLite answers 503, having changed nothing, if another writer interferes; such a request is repeated.

    Args:
        url: what to ask for.
        body: sent as JSON.
        method: instead of GET or POST.
        timeout_s: how long to wait.
        token: of the server, if it asks for one.

    Raises:
        urllib.error.HTTPError: the server refuses.
        OSError: there is no answer.
    """
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Basic {credentials(token)}"
    request = urllib.request.Request(  # noqa: S310 - the address is ours, or one `--address` accepted
        url, data, headers, method=method
    )
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with _opener(url).open(request, timeout=timeout_s) as answer:
                text = answer.read()
            return json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            if error.code != _BUSY or time.monotonic() > deadline:
                raise
        time.sleep(_BUSY_PAUSE_S)


def answers(url: str, token: str, timeout_s: float = 2.0) -> bool:
    """Return whether a local server's API reports that it is healthy."""
    try:
        return call(f"{url}/health", timeout_s=timeout_s, token=token) is True
    except (OSError, ValueError):
        return False


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Wait for a condition; return whether it came true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _opener(url: str) -> urllib.request.OpenerDirector:
    if urllib.parse.urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1"):
        return urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return urllib.request.build_opener()
