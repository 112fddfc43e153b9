"""What the deployments promise: all there, run as they are, scheduled when asked, each shard made once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from local import Gristmill, Local

from flows.cli.registry import FLOWS
from tasks.server.http import wait_until

NAMES = [*(entry.name for entry in FLOWS), "validate"]


def test_every_flow_has_a_deployment_and_a_scheduled_one(local: Local) -> None:
    found = local.call("deployments/filter", {"limit": 200})
    schedules: dict[str, list[list[dict[str, Any]]]] = {}
    flows = {flow["id"]: flow["name"] for flow in local.call("flows/filter", {"limit": 200})}
    for entry in found:
        schedules.setdefault(flows[entry["flow_id"]], []).append(entry["schedules"])
        assert entry["description"] and "gristmill" in entry["tags"], entry["name"]
        assert entry["global_concurrency_limit"]["limit"] > 0, entry["name"]
        assert entry["job_variables"]["env"]["GRISTMILL_RUNNER"] in ("threads", "processes"), entry["name"]
    assert sorted(schedules) == sorted(NAMES)
    for name, lists in schedules.items():
        crons = [[schedule["schedule"]["cron"] for schedule in entries] for entries in lists]
        assert sorted(map(len, crons)) == [0, 1], name
    # Nothing runs that nobody asked for.
    assert not any(
        schedule["active"] for lists in schedules.values() for [*all_] in lists for schedule in all_
    )


def test_every_form_runs_as_it_is(local: Local) -> None:
    runs = {name: local.start(name) for name in NAMES}
    for name, run in runs.items():
        ended = local.ended(run)
        assert ended["state_name"] == "Completed", f"{name}: {ended['state']['message']}"


def test_a_cron_deployment_creates_scheduled_runs(local: Local) -> None:
    deployment = local.deployment("pack-sft-nightly")
    [schedule] = deployment["schedules"]
    place = f"deployments/{deployment['id']}/schedules/{schedule['id']}"
    local.call(place, {"active": True}, "PATCH")
    # The scheduler looks at all deployments once a minute, and every five seconds at those just changed.
    local.call(f"deployments/{deployment['id']}", {"tags": deployment["tags"]}, "PATCH")
    try:
        assert wait_until(lambda: bool(local.runs("pack-sft-nightly")), 120)
        run = local.runs("pack-sft-nightly")[0]
        assert run["state_type"] == "SCHEDULED"
        assert run["auto_scheduled"] and "T03:00:00" in run["expected_start_time"]
    finally:
        local.call(place, {"active": False}, "PATCH")


def test_one_configuration_started_twice_at_once_is_made_once(local: Local, gristmill: Gristmill) -> None:
    deployment = local.deployment("pack-sft")
    config = {"output_dir": "runs-output/twice", "storage": {"shard_tokens": 8_192}}
    runs = [local.start("pack-sft", **config) for _ in range(2)]
    assert [local.ended(run)["state_name"] for run in runs] == ["Completed", "Completed"]
    tasks = [task for run in runs for task in local.tasks(run)]
    steps = ("screen", "tokenize", "cut", "pack", "validate")
    cached_steps = [task for task in tasks if task["task_key"].split("-")[0] in steps]
    states = [task["state_name"] for task in cached_steps]
    output = gristmill.state.files / deployment["parameters"]["config"]["output_dir"]
    receipts = list((output.parent / "twice" / "stages").glob("*/receipts/*.json"))
    assert len(receipts) > 10
    # Both runs went through every step; each was executed by one and found by the other.
    assert sorted(states) == ["Cached"] * len(receipts) + ["Completed"] * len(receipts)


@pytest.mark.parametrize("runner", ["processes"])
def test_the_runner_is_chosen_in_the_job_variables(runner: str, local: Local, tmp_path: Path) -> None:
    deployment = local.deployment("build-probe-rows-nightly")
    assert deployment["job_variables"]["env"]["GRISTMILL_RUNNER"] == runner
    run = local.start("build-probe-rows-nightly", output_dir=str(tmp_path / "probes"))
    assert local.ended(run)["state_name"] == "Completed"
