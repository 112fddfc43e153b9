"""A client's requests to a server that is well, busy, broken, suspended, gone, and well again."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from schemas.errors import WorkError
from tasks.server.link import Patience, PatientTransport, ServerLink, transport_to

QUICK = Patience(gone_s=1.5, busy_s=4.0, extra_s=1.0, say_s=0.5)
RUNNING = {"state": {"type": "RUNNING", "name": "Running"}}
COMPLETED = {"state": {"type": "COMPLETED", "name": "Completed"}}


class Stand(ThreadingHTTPServer):
    """Answers as Prefect would, or with a status, or not at all.

    Attributes:
        health, status: what it answers to `/health` and to all else; 0 for no answer.
        bodies: what was posted and answered well.
        authorization: what requests must carry, if anything.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.health = self.status = 200
        self.bodies: list[Any] = []
        self.authorization: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/api"


class Handler(BaseHTTPRequestHandler):
    server: Stand

    def do_GET(self) -> None:
        self._answer(self.server.health if self.path.endswith("/health") else self.server.status, True)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        while self.server.status == 0:
            time.sleep(0.05)
        if self.server.status == 200 and self.server.authorization in (None, self.headers["Authorization"]):
            self.server.bodies.append(body)
        self._answer(self.server.status, {"status": "ACCEPT", "state": body.get("state"), "by": "server"})

    def _answer(self, status: int, body: Any) -> None:
        if self.server.authorization not in (None, self.headers["Authorization"]):
            status, body = 401, {"detail": "token missing"}
        if status == 0:
            time.sleep(60)
        text = json.dumps(body).encode()
        with contextlib.suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def stand() -> Iterator[Stand]:
    server = Stand()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield server
    server.status = 200
    server.shutdown()
    server.server_close()


@contextlib.contextmanager
def client_of(link: ServerLink) -> Iterator[httpx.Client]:
    transport = PatientTransport(link, transport_to(link.url))
    with link.watched(), httpx.Client(base_url=link.url, transport=transport, timeout=60) as client:
        yield client


def state(client: httpx.Client, body: Any) -> Any:
    return client.post("/flow_runs/1/set_state", json=body).json()


def took(began: float, at_most: float) -> None:
    # A loaded machine may take a second for anything.
    assert time.monotonic() - began < at_most + 3


def test_a_busy_server_is_waited_for_and_the_wait_is_said(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    stand.status = 503
    with client_of(ServerLink(stand.url, patience=QUICK)) as client:
        threading.Timer(1.5, setattr, (stand, "status", 200)).start()
        assert state(client, RUNNING)["by"] == "server"
    assert f"waiting for the Prefect server at {stand.url}: no answer to POST" in caplog.text
    assert "HTTP status 503" in caplog.text


@pytest.mark.parametrize("status", [0, 503, 500])
def test_a_run_that_has_not_started_fails_when_its_server_stays_sick(stand: Stand, status: int) -> None:
    stand.status = status
    began = time.monotonic()
    with client_of(ServerLink(stand.url, patience=QUICK)) as client, pytest.raises(WorkError) as caught:
        client.post("/flow_runs/", json={})
    took(began, QUICK.busy_s)
    assert caught.value.code == "unreachable_server" and caught.value.where == stand.url


@pytest.mark.parametrize("status", [0, 503, 500])
def test_a_started_run_ends_without_its_server(
    stand: Stand, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    link = ServerLink(stand.url, patience=replace(QUICK, busy_s=60))
    with client_of(link) as client:
        assert state(client, RUNNING)["by"] == "server" and link.running and not link.unrecorded
        stand.health = stand.status = status
        began = time.monotonic()
        assert state(client, COMPLETED)["status"] == "ACCEPT"
        # A server that does not answer needs a timeout of its own to be found sick.
        took(began, QUICK.gone_s + 4)
        assert link.unrecorded and stand.bodies == [RUNNING]
        # Nothing waits for a server that is gone.
        began = time.monotonic()
        with pytest.raises(WorkError):
            client.post("/artifacts/", json={})
        took(began, 0)
    assert "no answer to POST /api/artifacts" not in caplog.text


def test_progress_is_not_worth_waiting_for(stand: Stand) -> None:
    link = ServerLink(stand.url, patience=replace(QUICK, busy_s=60))
    with client_of(link) as client:
        state(client, RUNNING)
        stand.status = 503
        began = time.monotonic()
        with pytest.raises(WorkError):
            client.post("/artifacts/", json={})
        took(began, QUICK.extra_s)
        assert not link.gone


def test_a_killed_server_is_noticed_at_once(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
    link = ServerLink(url, ended=lambda: "was killed by SIGKILL")
    link.running = True
    with client_of(link) as client:
        began = time.monotonic()
        assert state(client, COMPLETED)["status"] == "ACCEPT"
        took(began, 2)
    assert f"the Prefect server at {url} was killed by SIGKILL; the run continues without it" in caplog.text


def test_a_server_that_recovers_is_used_again(stand: Stand, caplog: pytest.LogCaptureFixture) -> None:
    link = ServerLink(stand.url, patience=QUICK)
    with client_of(link) as client:
        state(client, RUNNING)
        stand.health = 500
        deadline = time.monotonic() + 20
        while not link.gone and time.monotonic() < deadline:
            time.sleep(0.05)
        stand.health = 200
        while link.gone and time.monotonic() < deadline:
            time.sleep(0.05)
        assert state(client, COMPLETED)["by"] == "server"
    assert not link.unrecorded and stand.bodies == [RUNNING, COMPLETED]
    assert "answers again" in caplog.text


def test_an_interrupted_run_waits_for_nothing(stand: Stand) -> None:
    link = ServerLink(stand.url, patience=Patience())
    with client_of(link) as client:
        state(client, RUNNING)
        stand.status = 0
        threading.Timer(0.5, link.interrupt).start()
        began = time.monotonic()
        assert state(client, COMPLETED)["status"] == "ACCEPT" and link.unrecorded
        took(began, 2)


def test_a_refusal_is_an_answer(stand: Stand) -> None:
    stand.status = 404
    link = ServerLink(stand.url, patience=QUICK)
    with client_of(link) as client:
        assert client.get("/flow_runs/1").status_code == 404


# echo -n gristmill:secret | base64
CREDENTIALS = "Basic Z3Jpc3RtaWxsOnNlY3JldA=="


def test_a_server_that_was_replaced_is_not_taken_for_healthy(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    stand.authorization = CREDENTIALS
    link = ServerLink(stand.url, "gristmill:secret", patience=QUICK)
    with client_of(link) as client:
        client.headers["Authorization"] = CREDENTIALS
        state(client, RUNNING)
        time.sleep(QUICK.gone_s + 1.5)
        assert not link.sick
        # Restarted: on the same port, with another token.
        stand.authorization = "Basic other"
        began = time.monotonic()
        while not link.sick and time.monotonic() - began < 20:
            time.sleep(0.05)
        took(began, 1)
        assert state(client, COMPLETED)["status"] == "ACCEPT" and link.unrecorded
    assert "was replaced by one with another token; the run continues without it" in caplog.text


def test_a_server_that_does_not_know_us_ends_a_run_that_has_not_started(stand: Stand) -> None:
    stand.authorization = CREDENTIALS
    began = time.monotonic()
    with (
        client_of(ServerLink(stand.url)) as client,
        pytest.raises(WorkError, match="token missing") as caught,
    ):
        client.post("/flow_runs/", json={})
    took(began, 0)
    assert caught.value.code == "unreachable_server"
