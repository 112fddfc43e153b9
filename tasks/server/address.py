"""Choose the Prefect API that a run uses.

In this order: the one given (`--address`), the one Prefect is configured for (`PREFECT_API_URL`, a profile,
`prefect.toml`), the server `up` started, an embedded one.
"""

from __future__ import annotations

import os
import urllib.error
import urllib.parse
from typing import Literal, NamedTuple

from schemas.errors import ConfigError, WorkError, has_secret
from tasks.server.embedded import EmbeddedServer
from tasks.server.http import call
from tasks.server.state import State
from tasks.server.tokens import AUTH_VARIABLE

_API_URL = "PREFECT_API_URL"
_embedded: EmbeddedServer | None = None


class Api(NamedTuple):
    """A Prefect API.

    Attributes:
        url: with `/api`.
        kind: `given`, `configured`, `local` or `embedded`.
        ui: the URL of its UI, or nothing.
        token: of a server of ours; another one's is a setting of Prefect's.
    """

    url: str
    kind: Literal["given", "configured", "local", "embedded"]
    ui: str | None
    token: str | None = None


def use_api(address: str | None) -> Api:
    """Find or start the API for this process's runs, and point Prefect at it, in child processes too.

    Imports Prefect. An embedded server serves all further runs of this process.

    Raises:
        ConfigError: code `bad_address`.
        WorkError: code `unreachable_server` or `no_server`.
    """
    api = _find(address)
    os.environ[_API_URL] = api.url
    if api.token:
        os.environ[AUTH_VARIABLE] = api.token
    # Prefect read the environment when it was imported.
    from prefect.context import refresh_global_settings_context

    refresh_global_settings_context()
    return api


def embedded_server() -> EmbeddedServer | None:
    """Return the embedded server of this process, if it has one."""
    return _embedded


def _find(address: str | None) -> Api:
    global _embedded
    state = State.of_user()
    record = state.read()
    # Ours may also be given or configured; its token changes with every start.
    own = {record.url: record.token} if record is not None else {}
    if address is not None:
        url = normal_address(address)
        if url not in own and os.environ.get(AUTH_VARIABLE) in own.values():
            # From `status --env`; it is no business of another server's.
            del os.environ[AUTH_VARIABLE]
        _reach(url, "--address", own.get(url))
        return Api(url, "given", url.removesuffix("/api"), own.get(url))
    if _embedded is not None:
        return Api(_embedded.url, "embedded", None, _embedded.token)
    from prefect.settings import PREFECT_API_URL, PREFECT_UI_URL

    configured = PREFECT_API_URL.value()
    if configured:
        _refuse_password(configured, _API_URL)
        token = own.get(configured.rstrip("/"))
        _reach(configured, _API_URL, token)
        return Api(configured, "configured", PREFECT_UI_URL.value(), token)
    if record is not None and record.answers():
        return Api(record.url, "local", f"{record.ui}/v2", record.token)
    _embedded = EmbeddedServer(state)
    return Api(_embedded.url, "embedded", None, _embedded.token)


def normal_address(address: str) -> str:
    """Normalise the URL of an API, written with or without `/api`.

    >>> normal_address("http://127.0.0.1:4200/")
    'http://127.0.0.1:4200/api'

    Raises:
        ConfigError: code `bad_address`.
    """
    _refuse_password(address, "--address")
    parts = urllib.parse.urlsplit(address.rstrip("/"))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"{address!r} is not the address of a Prefect server; write http://HOST:PORT/api",
            code="bad_address",
            where="--address",
        )
    return address.rstrip("/") if parts.path.rstrip("/") else f"{address.rstrip('/')}/api"


def _refuse_password(url: str, where: str) -> None:
    if has_secret(url):
        raise ConfigError(
            "the address contains a user name or password; leave it out; PREFECT_API_AUTH_STRING can hold them",
            code="bad_address",
            where=where,
        )


def _reach(url: str, where: str, token: str | None) -> None:
    """Check that the server responds; the hosted product has no health check, so any answer will do."""
    try:
        call(f"{url}/health", timeout_s=10.0, token=token)
    except urllib.error.HTTPError:
        return
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise WorkError(
            f"no Prefect server answers at {url} ({reason}); start it, or give another address",
            code="unreachable_server",
            where=where,
        ) from error
