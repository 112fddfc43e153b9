"""A server that an older version started, without a token: it is named for what it is, and not restarted."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from schemas.errors import WorkError
from tasks.server.control import status, up
from tasks.server.processes import Started, started
from tasks.server.state import State


class _Healthy(BaseHTTPRequestHandler):
    """Answers every request as a healthy server without deployments; `/api/health` with `true`."""

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b"true" if self.path.endswith("/health") else b"[]"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def older(tmp_path: Path) -> Iterator[State]:
    """The state folder of a server whose record has no token."""
    state = State(tmp_path / "state")
    state.create()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Healthy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        # Written as that version did.
        record = {
            "url": f"http://127.0.0.1:{server.server_address[1]}/api",
            "server": {"pid": os.getpid(), "started": started(os.getpid())},
            "worker": None,
            "deployed": "",
        }
        state.record_path.write_text(json.dumps(record))
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()


def test_up_says_what_to_do_and_ends_nothing(older: State) -> None:
    with pytest.raises(WorkError, match="gristmill down") as refused:
        up(older)
    assert refused.value.code == "unprotected_server"
    record = older.read()
    assert record is not None and record.server == Started(os.getpid(), started(os.getpid()) or "")


def test_status_shows_it_without_a_link(older: State) -> None:
    seen = status(older)
    assert seen.healthy and seen.record is not None and not seen.record.token
    [ui] = [line for line in seen.lines() if line.startswith("ui ")]
    assert ui.split() == ["ui", seen.record.ui]
    assert "older version" in seen.lines()[-1] and "gristmill down" in seen.lines()[-1]
    assert seen.exports() == [
        f"export PREFECT_API_URL={seen.record.url}",
        "export PREFECT_API_AUTH_STRING=''",
    ]
