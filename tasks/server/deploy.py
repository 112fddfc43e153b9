"""Set up a local server with the work pool and the deployments of `deployments/prefect.yaml`."""

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
from tasks.server.launch import importable
from tasks.server.processes import MARK
from tasks.server.state import Record, State
from tasks.server.tokens import AUTH_VARIABLE

POOL = "local"
PREFECT_FILE = Path(__file__).resolve().parents[2] / "deployments" / "prefect.yaml"
# How often the worker asks for work. On average, half of this passes before it sees a run; asking costs the
# server 10 ms of processor time.
_QUERY_S = 1.5
_DEPLOY_TIMEOUT_S = 300.0


def deployments_digest() -> str:
    """Hash everything the deployments depend on: a server deployed with the same digest is up to date.

    Raises:
        WorkError: code `no_deployments`; the file is not beside this code.
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


def client_environment(state: State, record: Record) -> dict[str, str]:
    """Return the environment of the worker, its runs, and `prefect deploy`."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environ |= {
        "PREFECT_HOME": str(state.home),
        "PREFECT_API_URL": record.url,
        AUTH_VARIABLE: record.token,
        "PREFECT_WORKER_QUERY_SECONDS": str(_QUERY_S),
        MARK: str(state.folder),
    }
    quiet_environment(environ)
    # Runs pass this on as their own setting; their page in the UI shows their output.
    environ["PREFECT_LOGGING_LEVEL"] = "INFO"
    importable(environ)
    return environ


def worker_command() -> list[str]:
    """Return the command that starts the worker of the pool."""
    return [sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, "--name", "gristmill"]


def make_pool(record: Record) -> None:
    """Create the work pool, if it does not exist.

    This interpreter starts its runs directly. Prefect's default starts a process that looks for a project
    to install and then starts another, so Prefect is imported twice: two seconds.

    Raises:
        WorkError: code `no_pool`; the server refuses.
    """
    try:
        views = record.call("collections/views/aggregate-worker-metadata")
        template: dict[str, Any] = views["prefect"]["process"]["default_base_job_configuration"]
        variables = template["variables"]["properties"]
        variables["command"]["default"] = f"{sys.executable} -m prefect.engine"
        record.call(
            "work_pools/",
            {
                "name": POOL,
                "type": "process",
                "description": "Runs started by this computer's worker.",
                "base_job_template": template,
            },
        )
    except urllib.error.HTTPError as error:
        if error.code == 409:  # it already exists
            return
        raise WorkError(f"cannot create the work pool {POOL!r}: {error}", code="no_pool") from error
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise WorkError(f"cannot create the work pool {POOL!r}: {error!r}", code="no_pool") from error


def deploy(state: State, record: Record) -> None:
    """Run `prefect deploy --all`; deployed runs start in the state folder's `files`.

    Raises:
        WorkError: code `deploy_failed`, with the end of the command's output.
    """
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    done = subprocess.run(
        [*command, "--prefect-file", str(PREFECT_FILE)],
        cwd=state.files,
        env=client_environment(state, record),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_DEPLOY_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        said = f"{done.stdout}\n{done.stderr}".strip()[-2000:]
        raise WorkError(f"`prefect deploy` failed; it said: {said}", code="deploy_failed")


def deployments(record: Record) -> list[dict[str, Any]]:
    """Return name, flow and schedules of every deployment on the server."""
    found: list[dict[str, Any]] = record.call("deployments/filter", {"limit": 200})
    return found


def worker_online(record: Record) -> bool:
    """Return whether a worker of the pool has reported recently."""
    try:
        workers = record.call(f"work_pools/{POOL}/workers/filter", {})
    except (OSError, ValueError):
        return False
    return any(worker["status"] == "ONLINE" for worker in workers)
