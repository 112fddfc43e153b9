"""Make what proves to a local server that its user is asking: a token, a cookie, and links that work once.

The token is in the state file, which only the user can read, and in the environment of the server's own processes.
Programs send it as Prefect's clients do, as the credentials of HTTP's basic authentication. A browser gets a cookie
instead, for the code in a link. Both cookie and code are derived from the token, so the processes that make them and
the server share nothing else, and neither gives the token away: cookies know no ports, so a browser sends this one to
every server on 127.0.0.1 that its user visits.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time

# Prefect's name for what its clients send.
AUTH_VARIABLE = "PREFECT_API_AUTH_STRING"
OPEN_PATH = "/open"
LINK_MINUTES = 15


def new_token() -> str:
    """Return a new token, in the form `user:password` that basic authentication asks for."""
    return f"gristmill:{secrets.token_urlsafe(32)}"


def credentials(token: str) -> str:
    """Encode a token for an `Authorization` header.

    >>> credentials("gristmill:secret")
    'Z3Jpc3RtaWxsOnNlY3JldA=='
    """
    return base64.b64encode(token.encode()).decode()


def cookie_name(port: int) -> str:
    """Return the name of a server's cookie: two servers of one user must not overwrite each other's."""
    return f"gristmill-{port}"


def cookie_value(token: str) -> str:
    """Return the value of the cookie that a server accepts in place of its token."""
    return _derived(token, "cookie")


def one_time_link(ui: str, token: str) -> str:
    """Return a URL that signs one browser in, once, within the next `LINK_MINUTES`.

    Args:
        ui: URL of the server.
    """
    content = f"{int(time.time()) + LINK_MINUTES * 60}.{secrets.token_urlsafe(12)}"
    return f"{ui}{OPEN_PATH}?code={content}.{_derived(token, f'code {content}')}"


class Codes:
    """The codes of one server's links.

    Args:
        token: of the server.
    """

    def __init__(self, token: str) -> None:
        self._token = token
        # Kept for ever: the clock may be set back. There are only as many as the user opened.
        self._used: set[str] = set()

    def redeem(self, code: str) -> bool:
        """Return whether a code is valid, which it is only once."""
        content, _, proof = code.rpartition(".")
        expected = _derived(self._token, f"code {content}")
        if not hmac.compare_digest(proof.encode(), expected.encode()):
            return False
        # Nobody else can have written it.
        if int(content.partition(".")[0]) < time.time() or content in self._used:
            return False
        self._used.add(content)
        return True


def _derived(token: str, purpose: str) -> str:
    digest = hmac.new(token.encode(), purpose.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
