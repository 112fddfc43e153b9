"""Programs at a local server: with the token everything works, without it nothing does, and it is in one file."""

from __future__ import annotations

import base64
import http.client
import json
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from local import Gristmill, Local

from tasks.server.deploy import PREFECT_FILE
from tasks.server.tokens import AUTH_VARIABLE, credentials

_SUBSCRIBE = """
import asyncio
from prefect.client.schemas.filters import LogFilter
from prefect.events import emit_event
from prefect.events.clients import get_events_client, get_events_subscriber
from prefect.events.schemas.events import Event, Resource
from prefect.logging.clients import get_logs_subscriber

async def main():
    async with get_events_subscriber() as events, get_logs_subscriber(), get_events_client() as client:
        resource = Resource({"prefect.resource.id": "token.test"})
        await client.emit(Event(event="token.test", resource=resource))
        async for event in events:
            if event.event == "token.test":
                print("received")
                return

asyncio.run(asyncio.wait_for(main(), 60))
"""
# Refused for what is odd, credentials or not.
_ODD_REQUESTS = (
    "GET /api/health HTTP/1.1\r\n{auth}\r\n",
    "GET /api/health HTTP/1.0\r\n{auth}\r\n",
    "GET /api/health HTTP/1.1\r\nHost: {own}\r\nHost: {own}\r\n{auth}\r\n",
    "GET /api/health HTTP/1.1\r\nHost: {own}\r\nHost: attacker.test\r\n{auth}\r\n",
    "GET /api/health HTTP/1.1\r\nHost: attacker.test\r\n{auth}\r\n",
    "GET http://{own}/api/health HTTP/1.1\r\nHost: attacker.test\r\n{auth}\r\n",
    "GET http://attacker.test/api/health HTTP/1.1\r\nHost: attacker.test\r\n{auth}\r\n",
    "GET /api/health HTTP/1.1\r\nHost: {own}\r\nOrigin: null\r\n{auth}\r\n",
    "OPTIONS /api/health HTTP/1.1\r\nHost: {own}\r\nOrigin: http://attacker.test\r\n"
    "Access-Control-Request-Method: GET\r\n\r\n",
    "GET /%61pi/health HTTP/1.1\r\nHost: {own}\r\n\r\n",
    "GET //api/health HTTP/1.1\r\nHost: {own}\r\n\r\n",
    "GET /open/../api/health HTTP/1.1\r\nHost: {own}\r\n\r\n",
    "GET /api/events/out HTTP/1.1\r\nHost: attacker.test\r\n{auth}Connection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
    "GET /api/events/out HTTP/1.1\r\nHost: {own}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
)


@pytest.fixture
def exported(local: Local, gristmill: Gristmill, tmp_path: Path) -> dict[str, str]:
    """The environment of a shell in which the output of `status --env` was evaluated."""
    done = gristmill.run("status", "--env")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    lines = [shlex.split(line) for line in done.stdout.splitlines()]
    assert [line[0] for line in lines] == ["export", "export"]
    values = dict(line[1].split("=", 1) for line in lines)
    assert values == {"PREFECT_API_URL": local.record.url, AUTH_VARIABLE: local.record.token}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    return {**kept, **values, "PREFECT_HOME": str(tmp_path / "home"), "DO_NOT_TRACK": "1"}


def python(
    environ: dict[str, str], *arguments: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=environ, cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )


def test_prefects_own_programs_work_with_what_status_prints(
    local: Local, exported: dict[str, str], gristmill: Gristmill
) -> None:
    deploy = [
        "-m",
        "prefect",
        "--no-prompt",
        "deploy",
        "--prefect-file",
        str(PREFECT_FILE),
        "--name",
        "validate",
    ]
    done = python(exported, *deploy, cwd=gristmill.state.files)
    assert done.returncode == 0, done.stdout + done.stderr
    done = python(exported, "-m", "prefect", "deployment", "run", "build-probe-rows/build-probe-rows")
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = local.runs("build-probe-rows")[:1]
    assert local.ended(run["id"])["state_name"] == "Completed"
    # Events and logs come over websockets.
    done = python(exported, "-c", _SUBSCRIBE)
    assert done.stdout == "received\n", done.stderr


def test_prefects_own_programs_are_refused_without_it(local: Local, exported: dict[str, str]) -> None:
    del exported[AUTH_VARIABLE]
    done = python(exported, "-m", "prefect", "deployment", "run", "build-probe-rows/build-probe-rows")
    assert done.returncode != 0 and "401" in done.stdout + done.stderr
    assert "received" not in python(exported, "-c", _SUBSCRIBE).stdout


def test_runs_find_the_token_of_a_server_that_is_named(
    local: Local, gristmill: Gristmill, tmp_path: Path
) -> None:
    inputs = gristmill.state.files / "demo-output" / "inputs" / "measurements"
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"output_dir": str(tmp_path / "out"), "input": str(inputs)}))
    done = gristmill.run("build-probe-rows", str(config), "--address", local.ui)
    assert done.returncode == 0, done.stderr
    assert local.record.token not in done.stdout + done.stderr


def test_another_user_can_neither_ask_nor_read_the_token(local: Local, gristmill: Gristmill) -> None:
    """As root, by becoming one; else by what the files' modes say, and without the token."""
    code = """
import encodings.idna, http.client, os, sys
port, path = int(sys.argv[1]), sys.argv[2]  # another user may not be able to import more
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    try:
        open(path)
        print("read")
    except PermissionError:
        pass
for method, place in (("GET", "/api/health"), ("POST", "/api/deployments/filter"), ("GET", "/")):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, place, "{}", {"Content-Type": "application/json"})
    print(connection.getresponse().status)
"""
    port = local.ui.rpartition(":")[2]
    done = python(dict(os.environ), "-c", code, port, str(gristmill.state.record_path))
    assert done.stdout.split() == ["401", "401", "401"], done.stdout + done.stderr
    assert gristmill.state.record_path.stat().st_mode & 0o077 == 0
    assert gristmill.state.folder.stat().st_mode & 0o077 == 0


def test_what_no_browser_sends_is_refused_too(local: Local) -> None:
    own = local.ui.removeprefix("http://")
    auth = f"Authorization: Basic {credentials(local.record.token)}\r\n"
    usual = "GET /api/health HTTP/1.1\r\nHost: {own}\r\n{auth}\r\n"
    for request in (usual, *_ODD_REQUESTS):
        with socket.create_connection(("127.0.0.1", int(own.rpartition(":")[2])), 30) as connection:
            connection.sendall(request.format(own=own, auth=auth).encode())
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            assert answer.status in ((200,) if request == usual else (400, 401, 403)), request
            assert answer.headers["Access-Control-Allow-Origin"] is None, request


def test_the_token_is_in_the_state_file_alone(local: Local, gristmill: Gristmill) -> None:
    """After a run in the worker's hands, and with everything that the commands print."""
    assert (
        local.ended(local.start("build-probe-rows", output_dir="runs-output/token"))["state_name"]
        == "Completed"
    )
    secret = local.record.token.partition(":")[2]
    needles = [secret.encode(), base64.b64encode(local.record.token.encode()).rstrip(b"=")]
    found = [
        path.name
        for path in gristmill.state.folder.rglob("*")
        if path.is_file() and any(needle in path.read_bytes() for needle in needles)
    ]
    assert found == ["server.json"]
    for arguments in (["up"], ["up", "--json"], ["status"], ["status", "--json"]):
        done = gristmill.run(*arguments)
        assert secret not in done.stdout + done.stderr, arguments
    assert secret not in repr(local.record)
    running = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True).stdout
    assert secret not in running and "serve --socket" in running
    assert secret not in json.dumps(local.call("admin/settings"))
