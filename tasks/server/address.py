"""Choose the Prefect API that a run uses.

In this order: the one given (`--address`), the one Prefect is configured for (`PREFECT_API_URL`, a profile,
`prefect.toml`), the server `up` started, an embedded one.
"""

from __future__ import annotations

import os
import urllib.error
import urllib.parse
from collections.abc import Callable
from typing import Literal, NamedTuple

from schemas.errors import ConfigError, WorkError, has_secret
from tasks.server.embedded import EmbeddedServer
from tasks.server.http import call
from tasks.server.state import Record, State
from tasks.server.tokens import AUTH_VARIABLE

_API_URL = "PREFECT_API_URL"
_embedded: EmbeddedServer | None = None


def _unknown() -> str | None:
    return None


class Api(NamedTuple):
    """A Prefect API.

    Attributes:
        url: with `/api`.
        kind: `given`, `configured`, `local` or `embedded`.
        ui: the URL of its UI, or nothing.
        token: of a server of ours; another one's is a setting of Prefect's.
        ended: returns how the server's process ended; `None` while it runs, or for a server that is not ours.
    """

    url: str
    kind: Literal["given", "configured", "local", "embedded"]
    ui: str | None
    token: str | None = None
    ended: Callable[[], str | None] = _unknown


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


def _find(address: str | None) -> Api:
    global _embedded
    state = State.of_user()
    record = state.read()
    if address is not None:
        url = normal_address(address)
        return _named(Api(url, "given", url.removesuffix("/api")), "--address", record)
    if _embedded is not None:
        return _of_embedded(_embedded)
    from prefect.settings import PREFECT_API_URL, PREFECT_UI_URL

    configured = PREFECT_API_URL.value()
    if configured:
        _refuse_password(configured, _API_URL)
        return _named(Api(configured, "configured", PREFECT_UI_URL.value()), _API_URL, record)
    if record is not None and record.answers():
        return Api(record.url, "local", f"{record.ui}/v2", record.token, record.ended)
    _embedded = EmbeddedServer(state)
    return _of_embedded(_embedded)


def _of_embedded(server: EmbeddedServer) -> Api:
    return Api(server.url, "embedded", None, server.token, server.ended)


def _named(api: Api, where: str, record: Record | None) -> Api:
    """Check that a server that the user named responds; it may be ours, whose token changes with every start."""
    ours = [server for server in (record, _embedded) if server is not None]
    named = [server for server in ours if server.url == api.url.rstrip("/")]
    if named:
        api = api._replace(token=named[0].token, ended=named[0].ended)
    elif os.environ.get(AUTH_VARIABLE) in [server.token for server in ours]:
        # From `status --env` or an earlier run; it is no business of another server's.
        del os.environ[AUTH_VARIABLE]
    _reach(api.url, where, api.token)
    return api


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
