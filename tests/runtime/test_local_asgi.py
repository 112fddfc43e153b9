"""Requests that meet a busy database are repeated; pages are told to load from their server alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tasks.server.asgi import App, loads_from_itself, repeats_when_busy

_CORS = (b"access-control-allow-origin", b"*")


class Answers:
    """An app that answers with one status after the other, and keeps the bodies it was sent."""

    def __init__(self, *statuses: int, raises: bool = False) -> None:
        self.statuses = list(statuses)
        self.raises = raises
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message.get("more_body", False)
        self.bodies.append(body)
        assert "seen" not in scope
        scope["seen"] = True
        status = self.statuses.pop(0)
        await send({"type": "http.response.start", "status": status, "headers": [(b"x", b"1"), _CORS]})
        await send({"type": "http.response.body", "body": str(status).encode()})
        if self.raises and status >= 500:
            raise RuntimeError("the reason")


def ask(app: App, *chunks: bytes) -> list[dict[str, Any]]:
    """What the app sent for a POST whose body comes in chunks."""
    sent: list[dict[str, Any]] = []
    left = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    left[-1]["more_body"] = False

    async def receive() -> Any:
        return left.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app({"type": "http", "method": "POST"}, receive, send))  # type: ignore[arg-type]
    return sent


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize(
    ("statuses", "status"), [((200,), 200), ((503, 201), 201), ((503, 503, 404), 404), ((409,), 409)]
)
def test_the_first_answer_that_is_not_busy_counts(
    statuses: tuple[int, ...], status: int, raises: bool
) -> None:
    app = Answers(*statuses, raises=raises)
    start, body = ask(repeats_when_busy(app, (0, 0, 0)), b"one ", b"two")
    assert (start["status"], body["body"]) == (status, str(status).encode())
    assert app.bodies == [b"one two"] * len(statuses)


def test_a_server_that_stays_busy_says_so() -> None:
    app = Answers(503, 503, 503)
    start, _ = ask(repeats_when_busy(app, (0, 0)), b"body")
    assert start["status"] == 503
    assert app.statuses == []


def test_another_failure_is_passed_on() -> None:
    app = Answers(500, raises=True)
    with pytest.raises(RuntimeError, match="the reason"):
        ask(repeats_when_busy(app, (0, 0)), b"body")
    assert len(app.bodies) == 1


def test_other_connections_are_left_alone() -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope, receive, send))

    connection: Any = ({"type": "websocket"}, object(), object())
    asyncio.run(repeats_when_busy(app)(*connection))
    assert seen == [connection]


def test_answers_carry_the_policy() -> None:
    start, _ = ask(loads_from_itself(Answers(200), "127.0.0.1:4200"), b"")
    headers = dict(start["headers"])
    assert headers[b"x"] == b"1"
    policy = headers[b"content-security-policy"]
    assert b"default-src 'self'" in policy and b"connect-src 'self' ws://127.0.0.1:4200 data:" in policy
    assert headers[b"cross-origin-resource-policy"] == b"same-origin"
    assert _CORS[0] not in headers
