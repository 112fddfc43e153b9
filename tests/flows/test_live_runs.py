"""A run on a real server: what it is called, how far it is, why it failed, and how fast it stops."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from prefect_server import ask
from support import published_digests
from workloads import (
    command,
    environment,
    make_inputs,
    raw_config,
    run_cli,
    save_config,
    succeed,
    temporary_files,
)

from tasks.outputs.validate import validate_path

# The promise is 10 s; starting and reporting on a loaded machine come on top.
STOP_S = 10


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs"), big_files=1)


def flow_run(api: str, output: Path) -> dict[str, Any]:
    """The one flow run that wrote to `output`."""
    runs = ask(f"{api}/flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 50})
    found = [run for run in runs if run["parameters"].get("config", {}).get("output_dir") == str(output)]
    assert len(found) == 1
    run: dict[str, Any] = found[0]
    return run


def test_runs_say_what_they_do_and_how_far_they_are(
    prefect_api: str, inputs: Path, small_tokenizer: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    config = save_config(tmp_path / "c.json", raw_config(output, inputs, small_tokenizer))
    done = run_cli("pack-sft", config, "--json")
    assert done.returncode == 0, done.stderr
    run_hash = json.loads(done.stdout.splitlines()[-1])["run_hash"]

    run = flow_run(prefect_api, output)
    assert run["name"] == f"pack-sft small+big 256 · {run_hash[:4]}…"
    assert set(run["tags"]) == {"pack-sft", "small", "big"}
    of_run = {"flow_runs": {"id": {"any_": [run["id"]]}}}
    names = {task["name"] for task in ask(f"{prefect_api}/task_runs/filter", of_run)}
    parts = {name for name in names if name.startswith("tokenize big ")}
    assert {"tokenize small", "cut small", "cut big"} <= names
    assert parts == {f"tokenize big {number + 1}/{len(parts)}" for number in range(len(parts))}
    assert any(name.startswith("pack big train ") for name in names)

    artifacts = ask(
        f"{prefect_api}/artifacts/filter", {**of_run, "artifacts": {"type": {"any_": ["progress"]}}}
    )
    progress = {artifact["key"]: (artifact["data"], artifact["description"]) for artifact in artifacts}
    tasks = len(parts) + 1
    assert progress["pack-sft-tokenize"] == (100.0, f"tokenize: {tasks} of {tasks}")
    assert progress["pack-sft-pack"][0] == 100.0
    lines = done.stderr.splitlines()
    assert any(line.startswith(f"tokenize: {tasks} in ") for line in lines)
    assert not any("tokenize big" in line for line in lines) and "\x1b" not in done.stderr


def test_a_failed_run_shows_its_cause_in_one_line(
    prefect_api: str, inputs: Path, small_tokenizer: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    raw = raw_config(output, inputs, small_tokenizer, max_reject_fraction=0.0)
    done = run_cli("pack-sft", save_config(tmp_path / "c.json", raw))
    assert done.returncode == 3
    run = flow_run(prefect_api, output)
    assert run["state_type"] == "FAILED"
    message = run["state"]["message"]
    assert "reject_limit" in message and "datasets.small" in message and "\n" not in message


@pytest.mark.parametrize(
    ("runner", "sent"),
    [("threads", signal.SIGTERM), ("processes", signal.SIGINT)],
    ids=["threads", "processes"],
)
def test_a_stopped_run_ends_soon_and_goes_on_later(
    prefect_api: str, inputs: Path, small_tokenizer: Path, tmp_path: Path, runner: str, sent: signal.Signals
) -> None:
    output = tmp_path / "out"
    # A template that works for minutes on each row: no task ends by itself.
    slow = "{% for i in range(20000) %}{% for j in range(20) %}{% endfor %}{% endfor %}"
    raw = raw_config(output, inputs, small_tokenizer)
    template = json.loads((small_tokenizer / "tokenizer_config.json").read_text())["chat_template"]
    slowed = {**raw, "tokenizer": {**raw["tokenizer"], "chat_template": slow + template}}
    config = save_config(tmp_path / "slow.json", slowed)
    errors = os.open(tmp_path / "stderr", os.O_WRONLY | os.O_CREAT)
    process = subprocess.Popen(
        command("pack-sft", config, "--runner", runner),
        env=environment(),
        stderr=errors,
        start_new_session=True,
    )
    os.close(errors)
    _wait_for(lambda: any((output / "stages").glob("*/receipts/.*.lock")))
    asked = time.monotonic()
    os.kill(process.pid, sent)
    process.wait(timeout=60)
    took = time.monotonic() - asked
    assert process.returncode == 130, (tmp_path / "stderr").read_text()
    assert took < STOP_S
    assert "run the same command again" in (tmp_path / "stderr").read_text()
    assert flow_run(prefect_api, output)["state_type"] in ("CANCELLED", "CRASHED")
    _wait_for(lambda: not _members(process.pid))
    assert not (output / "latest").exists()

    fast = save_config(tmp_path / "fast.json", raw)
    succeed("pack-sft", fast)
    assert validate_path(output).ok and not list(temporary_files(output / "runs"))
    assert published_digests(output / "latest")


def _members(group: int) -> list[str]:
    listed = subprocess.run(["ps", "-o", "pid=", "-g", str(group)], capture_output=True, text=True)
    return listed.stdout.split()


def _wait_for(condition: Any, timeout_s: float = 60) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
