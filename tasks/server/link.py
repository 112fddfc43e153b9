"""Talk to the Prefect server of a run while it answers, and let the run continue without it otherwise.

Prefect's client repeats a failed request five times, each with a longer pause and a timeout of a minute, in the
thread that the run needs, and users see nothing. Here a thread asks every second whether the server is healthy, and
the client's transport waits only as long as that makes sense, and says so:

- The server has ended, was replaced by one with another token, or has not been healthy for `Patience.gone_s`: nothing
  waits any longer. A run that has not started fails (`unreachable_server`). One that has started continues: its data
  need no server. Its states then count as accepted, so that it ends as it would have, and `unrecorded` tells that the
  server does not know it.
- The server is healthy, but does not answer a request, as when something else locks its database: the start and the
  end of a run wait for up to `busy_s`, anything else (progress, artifacts) for `extra_s`.

A server that becomes healthy again is used again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx

from schemas.errors import WorkError
from tasks.server.http import call

log = logging.getLogger("gristmill.server")

_LOOK_S = 1.0
_PAUSE_S = 0.5
_HEALTH_S = 3.0
_TEMPORARY = (408, 429, 502, 503, 504)
_BROKEN = 500
_UNKNOWN, _FORBIDDEN = 401, 403
_REPLACED = "was replaced by one with another token"


@dataclass(frozen=True)
class Patience:
    """How long to wait for a server, in seconds.

    Attributes:
        gone_s: after so long without a sign of health it is gone; and so long it may answer 500, which rarely passes.
        busy_s: how long the start and the end of a run wait while it is healthy; a locked database takes a minute.
        extra_s: how long anything else waits.
        say_s: how long to wait in silence.
    """

    gone_s: float = 20.0
    busy_s: float = 90.0
    extra_s: float = 5.0
    say_s: float = 5.0


class ServerLink:
    """What this process knows of its server.

    Args:
        url: of the API, with `/api`.
        token: of a server of ours.
        ended: returns how the server's process ended, or `None` while it runs or if that cannot be known.
        patience: how long to wait.

    Attributes:
        running: whether the server accepted that the flow run runs.
        unrecorded: whether the server missed a state of the run, such as its end.
        interrupted: whether to wait for nothing any more.
        failure: why the run could not start, if the server was the reason.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        ended: Callable[[], str | None] = lambda: None,
        patience: Patience = Patience(),
    ) -> None:
        self.url = url
        self.patience = patience
        self.running = False
        self.unrecorded = False
        self.failure: WorkError | None = None
        self._token = token
        self._ended = ended
        self._why: str | None = None
        self.interrupted = False
        self._heard = time.monotonic()
        self._closed = threading.Event()

    @contextlib.contextmanager
    def watched(self) -> Iterator[ServerLink]:
        """Look after the server while the context is open."""
        thread = threading.Thread(target=self._watch, name="server-watch", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._closed.set()

    @property
    def sick(self) -> bool:
        """Whether the server has ended, or has not been healthy for too long."""
        return self._why is not None

    @property
    def gone(self) -> bool:
        """Whether waiting for the server is no use: it is sick, or the run was interrupted."""
        return self.sick or self.interrupted

    def interrupt(self) -> None:
        """Wait for nothing any more."""
        self.interrupted = True

    def lost(self, why: str | None = None) -> WorkError:
        """Return the error of a request that got no answer; the run cannot do without it, unless it has started."""
        why = why or self._why or "does not answer"
        remedy = (
            "see that it runs and answers, or give another address, then run the same command again to resume"
        )
        return WorkError(
            f"the Prefect server {why}" + ("" if self.running else f"; {remedy}"),
            code="unreachable_server",
            where=self.url,
        )

    def _watch(self) -> None:
        while not self._closed.wait(_LOOK_S):
            self._look()

    def _look(self) -> None:
        why = self._ended()
        if why is None:
            sick = _sickness(self.url, self._token)
            now = time.monotonic()
            if sick is None:
                self._heard = now
            elif sick == _REPLACED:
                why = sick
            elif now - self._heard >= self.patience.gone_s:
                why = f"has not been healthy for {self.patience.gone_s:.0f} s ({sick})"
        if why and not self._why and self.running and not self._closed.is_set():
            log.warning("the Prefect server at %s %s; the run continues without it", self.url, why)
        if self._why and not why:
            log.warning("the Prefect server at %s answers again", self.url)
        self._why = why


def _sickness(url: str, token: str | None) -> str | None:
    """Return why an API is not healthy, or `None`; the hosted product has no health check, so it may refuse."""
    try:
        call(f"{url}/health", timeout_s=_HEALTH_S, token=token)
    except urllib.error.HTTPError as error:
        if token and error.code == _UNKNOWN:
            return _REPLACED
        return None if error.code < _BROKEN else f"HTTP status {error.code}"
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error)) or type(error).__name__
    return None


def transport_to(url: str) -> httpx.HTTPTransport:
    """Return a transport with Prefect's settings for encryption, through the proxy that the environment names."""
    from prefect.settings import get_current_settings

    settings = get_current_settings().api
    parts = urllib.parse.urlsplit(url)
    verify: ssl.SSLContext | bool = False
    if parts.scheme == "https" and not settings.tls_insecure_skip_verify:
        file = settings.ssl_cert_file
        verify = ssl.create_default_context(cafile=file) if file else True
    proxies = {} if urllib.request.proxy_bypass(parts.hostname or "") else urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    return httpx.HTTPTransport(verify=verify, proxy=proxy, http2=settings.enable_http2)


class PatientTransport(httpx.BaseTransport):
    """Send requests as the state of a link allows.

    Args:
        link: to the server.
        inner: sends one request.
    """

    def __init__(self, link: ServerLink, inner: httpx.BaseTransport) -> None:
        self._link = link
        self._inner = inner

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request until it is answered or waiting is no use.

        Raises:
            WorkError: code `unreachable_server`; there was no answer.
        """
        request.read()
        # One attempt as long as the patience: a repeated request would wait behind the first in the server's queue.
        request.extensions["timeout"] = {
            **request.extensions.get("timeout", {}),
            "read": self._link.patience.busy_s,
        }
        try:
            return self._send(request)
        except BaseException as error:
            if not isinstance(error, Exception):
                self._link.interrupt()
            raise

    def _send(self, request: httpx.Request) -> httpx.Response:
        link = self._link
        began = said = time.monotonic()
        limits = link.patience
        patience = limits.busy_s if _needed(request) or not link.running else limits.extra_s
        answers = self._attempt(request)
        while not link.gone:
            try:
                answer = answers.get(timeout=_PAUSE_S)
            except queue.Empty:
                answer = None
            if isinstance(answer, httpx.Response) and _is_refusal(answer):
                return self._without(request, f"refuses this program ({_describe(answer)})")
            if isinstance(answer, httpx.Response) and not _is_temporary(answer):
                link.running |= _starts_run(request, answer)
                return answer
            waited = time.monotonic() - began
            if isinstance(answer, httpx.Response) and answer.status_code == _BROKEN:
                patience = min(patience, limits.gone_s)
            if waited > patience:
                break
            if time.monotonic() - said >= limits.say_s:
                said = time.monotonic() + limits.say_s
                log.warning(
                    "waiting for the Prefect server at %s: no answer to %s %s for %.0f s%s",
                    link.url,
                    request.method,
                    request.url.path,
                    waited,
                    "" if answer is None else f" ({_describe(answer)})",
                )
            if answer is not None:
                time.sleep(_PAUSE_S)
                answers = self._attempt(request)
        return self._without(request)

    def _attempt(self, request: httpx.Request) -> queue.SimpleQueue[httpx.Response | Exception]:
        """Send the request in a thread of its own, as nothing can interrupt a socket that waits."""
        answers: queue.SimpleQueue[httpx.Response | Exception] = queue.SimpleQueue()

        def send() -> None:
            try:
                response = self._inner.handle_request(request)
                response.read()
                answers.put(response)
            except Exception as error:
                answers.put(error)

        threading.Thread(target=send, name="server-request", daemon=True).start()
        return answers

    def _without(self, request: httpx.Request, why: str | None = None) -> httpx.Response:
        """Answer in place of the server what a started run needs to continue."""
        link = self._link
        if (link.running or link.interrupted) and _needed(request):
            link.unrecorded = True
            state = json.loads(request.content)["state"]
            accepted = {"status": "ACCEPT", "details": {"type": "accept_details"}, "state": state}
            return httpx.Response(201, json=accepted)
        if link.running and request.url.path.endswith("/csrf-token"):
            # What a server without such tokens answers.
            return httpx.Response(404)
        error = link.lost(why)
        if not link.running and not link.interrupted:
            link.failure = error
        raise error

    def close(self) -> None:
        """Close the connections."""
        self._inner.close()


def _needed(request: httpx.Request) -> bool:
    return request.url.path.endswith("/set_state")


def _starts_run(request: httpx.Request, answer: httpx.Response) -> bool:
    if not _needed(request) or answer.is_error:
        return False
    proposed = json.loads(request.content)["state"]["type"]
    return bool(proposed == "RUNNING" and answer.json()["status"] == "ACCEPT")


def _is_temporary(response: httpx.Response) -> bool:
    return response.status_code in _TEMPORARY or response.status_code == _BROKEN


def _is_refusal(response: httpx.Response) -> bool:
    """Return whether the server does not know us, as its token is another one; Prefect renews CSRF tokens itself."""
    code = response.status_code
    return code == _UNKNOWN or (code == _FORBIDDEN and "CSRF" not in response.text)


def _describe(answer: httpx.Response | Exception) -> str:
    if isinstance(answer, httpx.Response):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return f"HTTP status {answer.status_code}: {answer.json()['detail']}"
        return f"HTTP status {answer.status_code}"
    return str(answer) or type(answer).__name__
