"""Let only its user command a local server.

A deployment's job variables name a command, and the worker runs it: whoever can ask the server for a run can run any
program as its user. Prefect answers every page of every site (CORS `*`), under any host name, and every user of the
machine. So a request has to pass three checks:

- `Host` is the server's own address. The page of a host name that was made to lead to 127.0.0.1 (DNS rebinding) is of
  the server's origin in the eyes of the browser; its name gives it away. `localhost` is refused too: one server, one
  origin, and one cookie.
- `Origin`, if there is one, is the server's own: browsers add it to every request that changes something or whose
  answer a page could read, and to websockets. What they send without it, such as requests for images, has
  `Sec-Fetch-Site`.
- The token or the cookie (`tasks.server.tokens`) is there. Prefect's clients send the token in a header, but to some
  websockets only as the first message: there the guard reads that message.
"""

from __future__ import annotations

import hmac
import json
import urllib.parse
from http import HTTPStatus

from tasks.server.asgi import App, Message, Receive, Send
from tasks.server.tokens import OPEN_PATH, Codes, cookie_name, cookie_value, credentials

_SIGN_IN = "run `gristmill status` and open the link that it prints"
_EXPORT = 'in a shell, run: eval "$(gristmill status --env)"'
# The message has a type and a token; nobody needs a longer one.
_AUTH_CHARACTERS = 4_096
_POLICY_VIOLATION = 1008


class Guard:
    """Wrap an app so that it sees only its user's requests.

    Args:
        app: serves what is let through.
        host: address that the server listens on.
        port: port that it listens on.
        token: what its user's programs send.
    """

    def __init__(self, app: App, host: str, port: int, token: str) -> None:
        self._app = app
        # HTTP leaves out its own port.
        self._address = host if port == 80 else f"{host}:{port}"
        self._credentials = credentials(token).encode()
        self._cookie = (cookie_name(port).encode(), cookie_value(token).encode())
        self._token = token.encode()
        self._codes = Codes(token)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""
        kind = scope["type"]
        if kind == "lifespan":
            await self._app(scope, receive, send)
        elif reason := self._foreign(scope):
            await _refuse(scope, send, HTTPStatus.FORBIDDEN, reason)
        elif kind == "http" and scope["path"] == OPEN_PATH:
            await self._open(scope, send)
        elif self._known(scope):
            await self._app(scope, receive, send)
        elif kind == "websocket" and "prefect" in scope.get("subprotocols", ()):
            await _Introduced(self._token, receive, send).serve(self._app, scope)
        else:
            await _refuse(scope, send, HTTPStatus.UNAUTHORIZED, f"token or cookie missing; {_EXPORT}")

    def _foreign(self, scope: Message) -> str | None:
        """Return why a request is not for this server, or not from one of its pages."""
        own = f"http://{self._address}"
        hosts, origins = _values(scope, b"host"), _values(scope, b"origin")
        if [host.lower() for host in hosts] != [self._address.encode()]:
            return f"this server answers only at {own}"
        if origins not in ([], [own.encode()]):
            return f"this server answers only to its own pages, at {own}"
        if scope["type"] != "http":
            return None
        if not scope["path"].startswith("/"):
            return "this server is not a proxy"
        site = _values(scope, b"sec-fetch-site")
        if site in ([], [b"same-origin"], [b"none"]) or _follows_a_link(scope):
            return None
        return f"this server answers only to its own pages, at {own}"

    def _known(self, scope: Message) -> bool:
        """Return whether a request carries the token or the cookie."""
        match _values(scope, b"authorization"):
            case [value]:
                scheme, _, sent = value.partition(b" ")
                if scheme.lower() == b"basic" and hmac.compare_digest(sent.strip(), self._credentials):
                    return True
        name, expected = self._cookie
        # Any server on this address can set a second cookie of the same name.
        return any(hmac.compare_digest(value, expected) for value in _cookies(scope, name))

    async def _open(self, scope: Message, send: Send) -> None:
        """Answer a one-time link: sign the browser in, and send it to the UI.

        The page itself goes on to the UI. After a redirect, a link clicked on another site's page would still
        count as that site's request, and the browser would keep the cookie back.
        """
        query = urllib.parse.parse_qs(scope.get("query_string", b"").decode("latin-1"))
        codes = query.get("code", [])
        headers = []
        if not self._known(scope):
            if scope["method"] != "GET" or len(codes) != 1 or not self._codes.redeem(codes[0]):
                reason = f"this link was used before, or is too old; {_SIGN_IN}"
                await _refuse(scope, send, HTTPStatus.FORBIDDEN, reason)
                return
            cookie = b"%s=%s; Path=/; HttpOnly; SameSite=Strict" % self._cookie
            headers.append((b"set-cookie", cookie))
        page = '<meta http-equiv="refresh" content="0; url=/"><a href="/">Open the UI</a>'
        await _answer(send, HTTPStatus.OK, page, b"text/html", headers)


class _Introduced:
    """A websocket whose client has to send the token first; until then, nothing else passes in or out."""

    def __init__(self, token: bytes, receive: Receive, send: Send) -> None:
        self._token = token
        self._receive = receive
        self._send = send
        self._open = True
        self._known = False

    async def serve(self, app: App, scope: Message) -> None:
        await app(scope, self._checked, self._guarded)

    async def _checked(self) -> Message:
        if not self._open:
            return {"type": "websocket.disconnect", "code": _POLICY_VIOLATION}
        message = await self._receive()
        if message["type"] == "websocket.receive" and not self._known:
            if not _says(message, self._token):
                await self._close()
                return {"type": "websocket.disconnect", "code": _POLICY_VIOLATION}
            self._known = True
        return message

    async def _guarded(self, message: Message) -> None:
        if self._open and (self._known or message["type"] != "websocket.send"):
            self._open = message["type"] != "websocket.close"
            await self._send(message)
        elif self._open:
            await self._close()

    async def _close(self) -> None:
        self._open = False
        await self._send(
            {"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": "token missing or wrong"}
        )


def _says(message: Message, token: bytes) -> bool:
    """Return whether a message is Prefect's `{"type": "auth", "token": TOKEN}`."""
    text = message.get("text") or ""
    if len(text) > _AUTH_CHARACTERS:
        return False
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return False
    if not isinstance(said, dict) or said.get("type") != "auth" or not isinstance(said.get("token"), str):
        return False
    return hmac.compare_digest(said["token"].encode("utf-8", "surrogatepass"), token)


def _values(scope: Message, name: bytes) -> list[bytes]:
    return [value for key, value in scope.get("headers", ()) if key.lower() == name]


def _cookies(scope: Message, name: bytes) -> list[bytes]:
    """Return the values of all cookies of a name."""
    pairs = [pair.partition(b"=") for line in _values(scope, b"cookie") for pair in line.split(b";")]
    return [value.strip().strip(b'"') for key, _, value in pairs if key.strip() == name]


def _follows_a_link(scope: Message) -> bool:
    """Return whether a browser is about to show the answer as a page of its own, which nobody else can read."""
    wanted = {b"sec-fetch-mode": b"navigate", b"sec-fetch-dest": b"document"}
    return scope["method"] == "GET" and all(_values(scope, name) == [value] for name, value in wanted.items())


async def _refuse(scope: Message, send: Send, status: HTTPStatus, reason: str) -> None:
    if scope["type"] == "websocket":
        # Before it is accepted, the server answers with 403.
        await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": reason})
    elif status == HTTPStatus.UNAUTHORIZED and not scope["path"].startswith("/api/"):
        # A link from elsewhere arrives without the cookie; from this page, the browser sends it.
        page = f'<p>You are not signed in: {_SIGN_IN}.</p><p>Signed in already? <a href="">Continue</a></p>'
        await _answer(send, status, page, b"text/html")
    elif scope["path"].startswith("/api/"):
        # Prefect's clients show the content of a JSON answer.
        await _answer(send, status, json.dumps({"detail": reason}), b"application/json")
    else:
        await _answer(send, status, f"{reason}\n", b"text/plain")


async def _answer(
    send: Send,
    status: HTTPStatus,
    text: str,
    kind: bytes,
    headers: list[tuple[bytes, bytes]] | None = None,
) -> None:
    body = text.encode()
    start = [
        (b"content-type", kind + b"; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        *(headers or []),
    ]
    await send({"type": "http.response.start", "status": int(status), "headers": start})
    await send({"type": "http.response.body", "body": body})
