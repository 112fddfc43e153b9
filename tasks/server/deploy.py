"""Giving a local server the work pool and the deployments of `deployments/prefect.yaml`."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import urllib.error
from pathlib import Path
from typing import Any

from schemas.errors import WorkError
from tasks.runtime.settings import quiet_environment
from tasks.server.http import call
from tasks.server.launch import importable
from tasks.server.processes import MARK
from tasks.server.state import State

POOL = "local"
PREFECT_FILE = Path(__file__).resolve().parents[2] / "deployments" / "prefect.yaml"
# The worker asks for work this often. Half of it, on average, passes before a run is seen; asking costs the
# server 10 ms of processor time.
_QUERY_S = 1.5
_DEPLOY_TIMEOUT_S = 300.0


def deployments_digest() -> str:
    """What the deployments depend on: a server that was given the same needs nothing.

    Raises:
        WorkError: code `no_deployments`; the file is not where this code is.
    """
    try:
        content = PREFECT_FILE.read_bytes()
    except OSError as error:
        raise WorkError(
            f"cannot read the deployments: {error.strerror}; install gristmill again",
            code="no_deployments",
            where=str(PREFECT_FILE),
        ) from error
    return hashlib.sha256(content + os.fsencode(sys.executable)).hexdigest()[:16]


def client_environment(state: State, url: str) -> dict[str, str]:
    """The environment of the worker, of its runs, and of `prefect deploy`."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environ |= {
        "PREFECT_HOME": str(state.home),
        "PREFECT_API_URL": url,
        "PREFECT_WORKER_QUERY_SECONDS": str(_QUERY_S),
        MARK: str(state.folder),
    }
    quiet_environment(environ)
    # Runs hand this on as their own setting; their page in the UI shows what they say.
    environ["PREFECT_LOGGING_LEVEL"] = "INFO"
    importable(environ)
    return environ


def worker_command() -> list[str]:
    return [sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, "--name", "gristmill"]


def make_pool(url: str) -> None:
    """Make the work pool, if it is not there.

    Its runs are started by this interpreter directly. Prefect's default starts a process that looks for a project
    to install and then starts another, which imports Prefect twice: two seconds.

    Raises:
        WorkError: code `no_pool`; the server refuses.
    """
    try:
        views = call(f"{url}/collections/views/aggregate-worker-metadata")
        template: dict[str, Any] = views["prefect"]["process"]["default_base_job_configuration"]
        variables = template["variables"]["properties"]
        variables["command"]["default"] = f"{sys.executable} -m prefect.engine"
        call(
            f"{url}/work_pools/",
            {
                "name": POOL,
                "type": "process",
                "description": "Runs started by this computer's worker.",
                "base_job_template": template,
            },
        )
    except urllib.error.HTTPError as error:
        if error.code == 409:  # it is there
            return
        raise WorkError(f"cannot create the work pool {POOL!r}: {error}", code="no_pool") from error
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise WorkError(f"cannot create the work pool {POOL!r}: {error!r}", code="no_pool") from error


def deploy(state: State, url: str) -> None:
    """Run `prefect deploy --all`; runs of the deployments start in the state folder's `files`.

    Raises:
        WorkError: code `deploy_failed`, with what the command said last.
    """
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    done = subprocess.run(
        [*command, "--prefect-file", str(PREFECT_FILE)],
        cwd=state.files,
        env=client_environment(state, url),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_DEPLOY_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        said = f"{done.stdout}\n{done.stderr}".strip()[-2000:]
        raise WorkError(f"`prefect deploy` failed; it said: {said}", code="deploy_failed")


def deployments(url: str) -> list[dict[str, Any]]:
    """Name, flow and schedules of everything the server was given."""
    found: list[dict[str, Any]] = call(f"{url}/deployments/filter", {"limit": 200})
    return found


def worker_online(url: str) -> bool:
    """Whether a worker of the pool has been heard of lately."""
    try:
        workers = call(f"{url}/work_pools/{POOL}/workers/filter", {})
    except (OSError, ValueError):
        return False
    return any(worker["status"] == "ONLINE" for worker in workers)
