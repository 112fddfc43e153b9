"""A real server with a worker and the deployments, as `gristmill up` starts them, and a real browser."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from egress import recorded, recording_environment
from local import Gristmill, Local
from playwright.sync_api import Playwright, sync_playwright

from tasks.server.control import down
from tasks.server.state import STATE_VARIABLE, State

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def gristmill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gristmill]:
    """`gristmill ARGUMENTS` with a state folder of this session; nothing of it is left running at the end."""
    folder = tmp_path_factory.mktemp("local")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environ[STATE_VARIABLE] = str(folder / "state")
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), environ.get("PYTHONPATH")]))
    environ |= recording_environment(folder / "connections.log", environ)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "flows", *arguments],
            env=environ,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    command = Gristmill(run, State(folder / "state"), folder / "connections.log")
    try:
        yield command
    finally:
        down(command.state)


@pytest.fixture
def local(gristmill: Gristmill) -> Local:
    """The server, up."""
    done = gristmill.run("up", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return Local.of(done.stdout)


@pytest.fixture
def egress(gristmill: Gristmill) -> Callable[[], list[str]]:
    """Attempts of the server, the worker and its runs to reach beyond this computer, so far."""
    return lambda: recorded(gristmill.connections)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots go: `$GRISTMILL_SCREENSHOTS`, to keep them."""
    chosen = os.environ.get("GRISTMILL_SCREENSHOTS")
    folder = Path(chosen) if chosen else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    """Playwright's driver. A process can have only one, and no other event loop beside it: a module's at most."""
    with sync_playwright() as driver:
        yield driver
