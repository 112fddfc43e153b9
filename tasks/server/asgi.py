"""Wrap Prefect's app for the local server: pages load only from it, and requests wait for SQLite.

The UI asks Amplitude for a configuration, even with usage data switched off, and shows logos from other hosts. A
`Content-Security-Policy` makes the browser refuse both, and anything an artifact's author may have linked.

SQLite refuses a transaction that read before another one wrote, at once, whatever the timeout; Prefect answers 503,
having changed nothing. Its client then repeats the request. The UI does not: a form sent while a run was ending came
back with "Service Unavailable". So the request is repeated here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

_POLICY = (
    "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; connect-src 'self' ws://{address} "
    "data: blob:; form-action 'self'; base-uri 'self'; frame-ancestors 'self'; object-src 'none'"
)
# Other sites neither embed nor read an answer, nor keep a hand on a window that shows it.
_HEADERS = (
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
_BUSY = 503
_PAUSES_S = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


def loads_from_itself(app: App, address: str) -> App:
    """Wrap the app with a policy that lets a browser load only from it, and use it only in its own pages.

    Args:
        address: `HOST:PORT` of the server.
    """
    added = [(b"content-security-policy", _POLICY.format(address=address).encode()), *_HEADERS]

    async def guarded(scope: Message, receive: Receive, send: Send) -> None:
        async def send_with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent = message.get("headers", ())
                # Prefect lets every site read its answers.
                own = [header for header in sent if not header[0].startswith(b"access-control-")]
                message["headers"] = [*own, *added]
            await send(message)

        await app(scope, receive, send_with_policy)

    return guarded


def repeats_when_busy(app: App, pauses_s: tuple[float, ...] = _PAUSES_S) -> App:
    """Wrap the app to repeat a request that it answers with 503, until the pauses are used up."""

    async def patient(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        request = await _whole(receive)
        for pause in pauses_s:
            if not await _refused(app, scope, request, receive, send):
                return
            await asyncio.sleep(pause)
        await app(scope, _replayed(request, receive), send)

    return patient


async def _whole(receive: Receive) -> list[Message]:
    """Receive all messages that make up a request's body."""
    messages = [await receive()]
    while messages[-1].get("more_body"):
        messages.append(await receive())
    return messages


def _replayed(request: list[Message], receive: Receive) -> Receive:
    left = iter(request)

    async def again() -> Message:
        for message in left:
            return message
        return await receive()

    return again


async def _refused(app: App, scope: Message, request: list[Message], receive: Receive, send: Send) -> bool:
    """Call the app and return whether it refused the request; any other answer has been sent."""
    refused = False

    async def send_unless_refused(message: Message) -> None:
        nonlocal refused
        if message["type"] == "http.response.start":
            refused = message["status"] == _BUSY
        if not refused:
            await send(message)

    try:
        # The app records in the scope how it routed the request.
        await app(dict(scope), _replayed(request, receive), send_unless_refused)
    except Exception:
        # Starlette sends the answer, then raises its cause.
        if not refused:
            raise
    return refused
