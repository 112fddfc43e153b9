"""Websockets behind the guard: known by their header or cookie, or by their first message, before anything passes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from server.test_guard import AUTH, OWN, SIGNED_IN, TOKEN, Headers

from tasks.server.guard import Guard


class Chat:
    """An app that accepts, sends at once, and collects what it receives, until it is disconnected."""

    def __init__(self, talks_first: bool = False) -> None:
        self.reached = False
        self.received: list[Any] = []
        self._talks_first = talks_first

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.reached = True
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept", "subprotocol": "prefect"})
        if self._talks_first:
            await send({"type": "websocket.send", "text": "secret"})
        while (message := await receive())["type"] != "websocket.disconnect":
            self.received.append(message["text"])
            await send({"type": "websocket.send", "text": "echo"})
        await send({"type": "websocket.send", "text": "too late"})


def talk(
    app: Any, headers: Headers, *texts: str | bytes, subprotocols: tuple[str, ...] = ("prefect",)
) -> list[Any]:
    """What is sent to a client that sends these messages."""
    left: list[Any] = [{"type": "websocket.connect"}]
    for text in texts:
        kind = "bytes" if isinstance(text, bytes) else "text"
        left.append({"type": "websocket.receive", kind: text})
    left.append({"type": "websocket.disconnect", "code": 1000})
    sent: list[Any] = []

    async def receive() -> Any:
        return left.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "websocket",
        "path": "/api/events/out",
        "subprotocols": list(subprotocols),
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
    }
    asyncio.run(Guard(app, "127.0.0.1", 4200, TOKEN)(scope, receive, send))
    return sent


def said(sent: list[Any]) -> list[str]:
    return [message["type"].removeprefix("websocket.") for message in sent]


@pytest.mark.parametrize(
    "headers",
    [
        [("Host", "attacker.test:4200"), SIGNED_IN, AUTH],
        [("Host", "localhost:4200"), SIGNED_IN, AUTH],
        [SIGNED_IN, AUTH],
        [("Host", OWN), ("Origin", "http://attacker.test"), SIGNED_IN, AUTH],
        [("Host", OWN), ("Origin", "http://127.0.0.1:9999"), SIGNED_IN, AUTH],
        [("Host", OWN), ("Origin", "null"), SIGNED_IN, AUTH],
        [("Host", OWN), ("Origin", f"ws://{OWN}"), SIGNED_IN, AUTH],
    ],
)
def test_foreign_ones_are_refused_before_they_open(headers: Headers) -> None:
    app = Chat()
    sent = talk(app, headers, json.dumps({"type": "auth", "token": TOKEN}))
    assert said(sent) == ["close"] and not app.reached


@pytest.mark.parametrize("proof", [AUTH, SIGNED_IN])
@pytest.mark.parametrize("subprotocols", [(), ("prefect",)])
def test_the_header_or_the_cookie_opens_one(proof: tuple[str, str], subprotocols: tuple[str, ...]) -> None:
    app = Chat(talks_first=True)
    sent = talk(app, [("Host", OWN), ("Origin", f"http://{OWN}"), proof], "hello", subprotocols=subprotocols)
    assert said(sent)[:3] == ["accept", "send", "send"] and app.received == ["hello"]


def test_the_first_message_opens_one() -> None:
    app, auth = Chat(), json.dumps({"type": "auth", "token": TOKEN})
    sent = talk(app, [("Host", OWN)], auth, "hello")
    assert app.received == [auth, "hello"]
    assert said(sent)[:3] == ["accept", "send", "send"]


@pytest.mark.parametrize("subprotocols", [(), ("other",), ("Prefect",)])
def test_one_without_proof_must_speak_the_protocol_that_starts_with_it(subprotocols: tuple[str, ...]) -> None:
    app = Chat()
    assert said(talk(app, [("Host", OWN)], "{}", subprotocols=subprotocols)) == ["close"]
    assert not app.reached


@pytest.mark.parametrize(
    "first",
    [
        "",
        "hello",
        "null",
        "[]",
        "{}",
        '{"type": "auth"}',
        '{"type": "auth", "token": null}',
        '{"type": "auth", "token": ["gristmill:a token"]}',
        '{"type": "auth", "token": "gristmill:a toke"}',
        '{"type": "auth", "token": "\\ud800"}',
        '{"type": "event", "token": "gristmill:a token"}',
        '{"type": "auth", "token": "gristmill:a token"} ' + " " * 5_000,
        "[" * 4_000,
        "[" * 1_000_000,
        b'{"type": "auth", "token": "gristmill:a token"}',
    ],
)
def test_another_first_message_ends_it_before_anything_passes(first: str | bytes) -> None:
    app = Chat()
    sent = talk(app, [("Host", OWN)], first, json.dumps({"type": "auth", "token": TOKEN}), "hello")
    assert said(sent) == ["accept", "close"]
    assert sent[-1]["code"] == 1008 and app.received == []


def test_nothing_is_sent_before_the_first_message() -> None:
    app = Chat(talks_first=True)
    sent = talk(app, [("Host", OWN)], json.dumps({"type": "auth", "token": TOKEN}))
    assert said(sent) == ["accept", "close"] and app.received == []
