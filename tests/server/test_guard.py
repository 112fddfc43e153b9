"""A local server's guard, in front of an app that only counts: what reaches it, and what does not."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import re
import urllib.parse
from collections.abc import Sequence
from typing import Any

import pytest

from tasks.server import tokens
from tasks.server.guard import Guard
from tasks.server.tokens import Codes, new_token, one_time_link

HOST, PORT = "127.0.0.1", 4200
OWN = f"{HOST}:{PORT}"
TOKEN = "gristmill:a token"
# Written out: what curl -u sends, and what a browser was given.
BASIC = "Basic " + base64.b64encode(b"gristmill:a token").decode()
COOKIE = base64.urlsafe_b64encode(hmac.digest(TOKEN.encode(), b"cookie", "sha256")).decode().rstrip("=")

Headers = Sequence[tuple[str, str]]
AUTH = ("Authorization", BASIC)
SIGNED_IN = ("Cookie", f"gristmill-{PORT}={COOKIE}")


class App:
    """Counts what reaches it, and answers 200."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen.append(scope)
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"served"})


class Answer:
    """What a request came back with.

    Attributes:
        reached: whether the app saw it.
    """

    def __init__(self, sent: list[Any], reached: bool) -> None:
        start, body = sent
        self.status: int = start["status"]
        self.headers = {key.decode(): value.decode() for key, value in start["headers"]}
        self.text: str = body["body"].decode()
        self.reached = reached


def ask(
    headers: Headers, path: str = "/api/flow_runs/", method: str = "POST", guard: Guard | None = None
) -> Answer:
    app = App()
    guard = guard or Guard(app, HOST, PORT, TOKEN)
    guard._app = app
    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "method": method,
        "path": urllib.parse.unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers],
    }
    sent: list[Any] = []

    async def receive() -> Any:
        pytest.fail("the guard reads no bodies")

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(guard(scope, receive, send))
    return Answer(sent, bool(app.seen))


@pytest.mark.parametrize(
    "hosts",
    [
        [],
        [""],
        ["attacker.test"],
        ["attacker.test:4200"],
        ["localhost:4200"],
        ["127.0.0.1"],
        ["127.0.0.1:4201"],
        ["127.0.0.1:04200"],
        ["127.0.0.1.:4200"],
        ["127.0.0.1:4200."],
        ["127.1:4200"],
        ["2130706433:4200"],
        ["0.0.0.0:4200"],
        ["[::1]:4200"],
        ["[::ffff:127.0.0.1]:4200"],
        ["127.0.0.1:4200@attacker.test"],
        ["attacker.test@127.0.0.1:4200"],
        ["http://127.0.0.1:4200"],
        ["127.0.0.1:4200, attacker.test"],
        [" 127.0.0.1:4200"],
        ["127.0.0.1:4200/"],
        ["127.0.0.1%3a4200"],
        [OWN, OWN],
        [OWN, "attacker.test"],
        ["attacker.test", OWN],
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_another_host_is_refused_whatever_it_carries(hosts: list[str], method: str) -> None:
    hosts_sent = [("Host", host) for host in hosts]
    answer = ask([*hosts_sent, AUTH, SIGNED_IN], method=method)
    assert (answer.status, answer.reached) == (403, False)
    assert f"only at http://{OWN}" in answer.text
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "origins",
    [
        [""],
        ["null"],
        ["http://attacker.test"],
        ["https://127.0.0.1:4200"],
        ["http://127.0.0.1"],
        ["http://127.0.0.1:4201"],
        ["http://localhost:4200"],
        ["http://127.0.0.1:4200/"],
        ["http://127.0.0.1:4200."],
        ["http://127.0.0.1:4200.attacker.test"],
        ["http://127.0.0.1:42000"],
        ["http://[::1]:4200"],
        ["ws://127.0.0.1:4200"],
        ["http://127.0.0.1:4200 http://attacker.test"],
        ["HTTP://127.0.0.1:4200"],
        [f"http://{OWN}", f"http://{OWN}"],
        [f"http://{OWN}", "http://attacker.test"],
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_another_origin_is_refused_whatever_it_carries(origins: list[str], method: str) -> None:
    sent = [("Origin", origin) for origin in origins]
    answer = ask([("Host", OWN), *sent, AUTH, SIGNED_IN], method=method)
    assert (answer.status, answer.reached) == (403, False)
    assert "own pages" in answer.text
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("sites", "mode", "shown_in", "method", "reached"),
    [
        (["same-origin"], "cors", "empty", "POST", True),
        (["none"], "navigate", "document", "GET", True),
        # A page of another server of this computer: the browser sends the cookie along.
        (["same-site"], "no-cors", "script", "GET", False),
        (["cross-site"], "no-cors", "image", "GET", False),
        (["same-site"], "navigate", "iframe", "GET", False),
        (["none", "none"], "no-cors", "image", "GET", False),
        # A link that is followed, and a form that is sent.
        (["cross-site"], "navigate", "document", "GET", True),
        (["cross-site"], "navigate", "document", "POST", False),
    ],
)
def test_what_another_page_loads_is_refused(
    sites: list[str], mode: str, shown_in: str, method: str, reached: bool
) -> None:
    fetch = [*(("Site", site) for site in sites), ("Mode", mode), ("Dest", shown_in)]
    sent = [(f"Sec-Fetch-{name}", value) for name, value in fetch]
    assert ask([("Host", OWN), SIGNED_IN, *sent], method=method).reached is reached


@pytest.mark.parametrize(
    "proof",
    [
        [],
        [("Authorization", "")],
        [("Authorization", "Basic")],
        [("Authorization", "Basic ")],
        [("Authorization", "Basic " + base64.b64encode(b"gristmill:").decode())],
        [("Authorization", "Basic " + base64.b64encode(b"gristmill:A token").decode())],
        [("Authorization", f"Bearer {BASIC.split()[1]}")],
        [("Authorization", f"Bearer {TOKEN}")],
        [("Authorization", TOKEN)],
        [("Authorization", f"Basic {TOKEN}")],
        [("Authorization", "Basic \xff\xfe")],
        [("Authorization", BASIC[:-1])],
        [AUTH, AUTH],
        [AUTH, ("Authorization", "Basic eA==")],
        [("Cookie", "")],
        [("Cookie", f"gristmill-{PORT}=")],
        [("Cookie", f"gristmill-{PORT}")],
        [("Cookie", f"gristmill-{PORT}={COOKIE}x")],
        [("Cookie", f"gristmill-{PORT}={TOKEN}")],
        [("Cookie", f"gristmill-4201={COOKIE}")],
        [("Cookie", f"GRISTMILL-{PORT}={COOKIE}")],
        [("Cookie", f"x=gristmill-{PORT}={COOKIE}")],
        [("Cookie", f"gristmill-{PORT}={urllib.parse.quote('%' + COOKIE)}")],
        [("X-Forwarded-For", "127.0.0.1")],
    ],
)
@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/api/health",
        "/api/flow_runs/",
        "/v2/",
        "/api/docs",
        "/openapi.json",
        "//open",
        "/open/",
        "/open/x",
    ],
)
def test_without_token_nothing_is_answered(proof: Headers, path: str) -> None:
    answer = ask([("Host", OWN), *proof], path, "GET")
    assert (answer.status, answer.reached) == (401, False)
    assert "status" in answer.text
    # That would make the browser ask for a password.
    assert "www-authenticate" not in answer.headers
    if path.startswith("/api/"):
        assert "status --env" in json.loads(answer.text)["detail"]


@pytest.mark.parametrize(
    "headers",
    [
        [AUTH],
        [("Authorization", BASIC.replace("Basic", "bAsIc"))],
        [SIGNED_IN],
        [("Origin", f"http://{OWN}"), SIGNED_IN],
        [("Cookie", f"a=b;gristmill-{PORT}={COOKIE} ; c=d")],
        [("Cookie", f'gristmill-{PORT}="{COOKIE}"')],
        [("Cookie", "a=b"), SIGNED_IN],
        # Set by another server on 127.0.0.1, and by one with a bad password.
        [("Cookie", f"gristmill-{PORT}=other; gristmill-{PORT}={COOKIE}")],
        [("Authorization", "Basic eA=="), SIGNED_IN],
    ],
)
def test_its_user_is_served(headers: Headers) -> None:
    answer = ask([("Host", OWN), *headers])
    assert (answer.status, answer.text, answer.reached) == (200, "served", True)


def test_a_proxy_request_is_refused() -> None:
    assert not ask([("Host", OWN), AUTH], "http://attacker.test/api/flow_runs/").reached


def test_the_port_of_http_is_left_out() -> None:
    guard = Guard(App(), HOST, 80, TOKEN)
    assert ask([("Host", HOST), ("Origin", f"http://{HOST}"), AUTH], guard=guard).reached
    assert not ask([("Host", f"{HOST}:4200"), AUTH], guard=guard).reached


def test_the_lifespan_passes() -> None:
    app = App()
    asyncio.run(Guard(app, HOST, PORT, TOKEN)({"type": "lifespan"}, None, None))  # type: ignore[arg-type]
    assert app.seen == [{"type": "lifespan"}]


def link(token: str = TOKEN) -> str:
    """Path and query of a one-time link."""
    return one_time_link("", token)


def test_a_link_signs_in_once() -> None:
    guard, path = Guard(App(), HOST, PORT, TOKEN), link()
    first = ask([("Host", OWN), ("Sec-Fetch-Site", "none")], path, "GET", guard)
    assert (first.status, first.reached) == (200, False)
    cookie, *attributes = first.headers["set-cookie"].split("; ")
    assert cookie == f"gristmill-{PORT}={COOKIE}"
    assert sorted(attributes) == ["HttpOnly", "Path=/", "SameSite=Strict"]
    assert TOKEN not in str(first.headers) + first.text and first.headers["cache-control"] == "no-store"

    second = ask([("Host", OWN)], path, "GET", guard)
    assert second.status == 403 and "set-cookie" not in second.headers
    assert "gristmill status" in second.text
    # Who is signed in goes on to the UI, and uses nothing up.
    other = link()
    for again in (path, other):
        third = ask([("Host", OWN), ("Cookie", cookie)], again, "GET", guard)
        assert third.status == 200 and "set-cookie" not in third.headers
    assert "set-cookie" in ask([("Host", OWN)], other, "GET", guard).headers
    # A restarted server has another token.
    assert ask([("Host", OWN)], link(), "GET", Guard(App(), HOST, PORT, "gristmill:new")).status == 403


@pytest.mark.parametrize(
    ("path", "headers", "method"),
    [
        ("/open", [], "GET"),
        ("/open?code=", [], "GET"),
        ("/open?code=1.2.3", [], "GET"),
        ("/open?code=9999999999.x", [], "GET"),
        # The cookie is known to other servers on this address.
        (f"/open?code=cookie.{COOKIE}", [], "GET"),
        (f"/open?code={TOKEN}", [], "GET"),
        ("/open?code=%ff%fe.%00", [], "GET"),
        ("ANOTHER", [], "GET"),
        ("LINKx", [], "GET"),
        ("/open?code=9LINK", [], "GET"),
        ("LINK&code=1.2", [], "GET"),
        ("LINK", [], "HEAD"),
        ("LINK", [], "POST"),
        ("LINK", [("Origin", "http://attacker.test")], "GET"),
        ("LINK", [("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Dest", "iframe")], "GET"),
    ],
)
def test_nothing_else_signs_in(path: str, headers: Headers, method: str) -> None:
    # Links are random: as parameters, they would differ from process to process.
    path = path.replace("/open?code=9LINK", link().replace("code=", "code=9"))
    path = path.replace("LINK", link()).replace("ANOTHER", link("gristmill:another"))
    answer = ask([("Host", OWN), *headers], path, method)
    assert answer.status == 403 and "set-cookie" not in answer.headers and not answer.reached


def test_a_link_is_valid_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000_000.0
    monkeypatch.setattr(tokens.time, "time", lambda: now)
    codes, first, second = Codes(TOKEN), *(link().partition("code=")[2] for _ in range(2))
    now += 15 * 60
    assert codes.redeem(first) and not codes.redeem(first)
    now += 1
    assert not codes.redeem(second)
    third = link().partition("code=")[2]
    assert codes.redeem(third)
    # The clock is set back.
    now -= 10 * 60
    assert not codes.redeem(first)


def test_tokens_differ_and_are_long() -> None:
    made = {new_token() for _ in range(100)}
    assert len(made) == 100
    # 256 random bits, in characters that need no quotes in a shell.
    assert all(re.fullmatch(r"gristmill:[\w-]{43}", token) for token in made)
