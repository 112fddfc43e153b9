"""The local server as a test drives it: commands, and its API."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.server.state import Record, State

# A run takes five seconds here, with the start of its process; loaded machines are slow.
RUN_TIMEOUT_S = 240.0
_ENDED = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


@dataclass(frozen=True)
class Gristmill:
    """The command line, its state folder, and the record of attempted connections."""

    run: Callable[..., subprocess.CompletedProcess[str]]
    state: State
    connections: Path


@dataclass(frozen=True)
class Local:
    """A running server.

    Attributes:
        status: what `up --json` or `status --json` printed.
        record: what is in its state file.
    """

    status: dict[str, Any]
    record: Record

    @classmethod
    def of(cls, printed: str) -> Local:
        status = json.loads(printed.splitlines()[-1])
        record = State(Path(status["state"])).read()
        assert record is not None
        return cls(status, record)

    @property
    def ui(self) -> str:
        return str(self.status["ui"])

    def call(self, path: str, body: Any = None, method: str | None = None) -> Any:
        return self.record.call(path, body, method, timeout_s=RUN_TIMEOUT_S)

    def deployment(self, name: str) -> dict[str, Any]:
        found = [entry for entry in self.call("deployments/filter", {"limit": 200}) if entry["name"] == name]
        assert len(found) == 1, f"{len(found)} deployments {name}"
        entry: dict[str, Any] = found[0]
        return entry

    def start(self, name: str, **config: Any) -> str:
        """Start a run of a deployment with changed configuration keys; returns the run's id."""
        deployment = self.deployment(name)
        parameters = {"config": {**deployment["parameters"]["config"], **config}}
        run = self.call(f"deployments/{deployment['id']}/create_flow_run", {"parameters": parameters})
        return str(run["id"])

    def runs(self, name: str) -> list[dict[str, Any]]:
        """Runs of a deployment, newest first."""
        deployments = {"name": {"any_": [name]}}
        found: list[dict[str, Any]] = self.call(
            "flow_runs/filter", {"deployments": deployments, "sort": "START_TIME_DESC", "limit": 200}
        )
        return found

    def ended(self, run: str) -> dict[str, Any]:
        """A run, once it has ended in whatever way."""
        deadline = time.monotonic() + RUN_TIMEOUT_S
        while True:
            found: dict[str, Any] = self.call(f"flow_runs/{run}")
            if found["state_type"] in _ENDED:
                return found
            assert time.monotonic() < deadline, f"the run is still {found['state_name']}"
            time.sleep(0.1)

    def tasks(self, run: str, last: str = "publish") -> list[dict[str, Any]]:
        """The task runs of a completed run, once all are recorded, which the server does a moment later.

        Args:
            last: name of the flow's last step.
        """
        deadline = time.monotonic() + RUN_TIMEOUT_S
        while True:
            found: list[dict[str, Any]] = self.call(
                "task_runs/filter", {"flow_runs": {"id": {"any_": [run]}}, "limit": 200}
            )
            names = {task["task_key"].split("-")[0] for task in found}
            if last in names and all(task["state_type"] in _ENDED for task in found):
                return found
            assert time.monotonic() < deadline, [task["state_name"] for task in found]
            time.sleep(0.1)
