"""Runs whose server or worker process is killed: published all the same, or ended with a cause and easily resumed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from workloads import (
    ROOT,
    changed,
    command,
    environment,
    make_inputs,
    raw_config,
    save_config,
    stage_files,
    succeed,
)

from tasks.outputs.validate import validate_path
from tasks.storage.flock import is_locked, signed_by

# The promise is that nothing hangs for a minute.
HANG_S = 60


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs"), big_files=1)


def start(*arguments: str | Path, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(*arguments),
        cwd=ROOT,
        env=env or environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def until(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.005)


def descendants(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def test_a_run_whose_server_is_killed_publishes(
    prefect_api: str, inputs: Path, small_tokenizer: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    config = save_config(tmp_path / "c.json", raw_config(output, inputs, small_tokenizer))
    variables = environment(GRISTMILL_STATE_DIR=str(tmp_path / "state"))
    env = {name: value for name, value in variables.items() if not name.startswith("PREFECT_")}
    process = start("pack-sft", config, "--json", env=env)
    until(process, lambda: any(output.glob("stages/*/receipts/tokenize-*.json")))
    children = descendants(process)
    [server] = [child for child in children if "tasks.server.serve" in child.cmdline()]
    server.kill()
    killed = time.monotonic()
    told, errors = process.communicate(timeout=300)
    assert time.monotonic() - killed < HANG_S
    assert process.returncode == 0, errors
    assert "was killed by SIGKILL; the run continues without it" in errors
    assert "complete and published, but the Prefect server has no record of its end" in errors
    assert "Traceback" not in errors and "Error logging" not in errors and "Event(" not in errors
    assert json.loads(told.splitlines()[-1])["cached"] is False
    assert validate_path(output).ok
    assert not psutil.wait_procs(children, timeout=10)[1]


def held(output: Path) -> Iterator[tuple[Path, int]]:
    """The lock files of tokenize tasks that are held, and who holds them."""
    for path in output.glob("stages/*/receipts/.tokenize-*.lock"):
        holder = signed_by(path)
        if holder is not None and is_locked(path):
            yield path, holder


def test_a_killed_worker_process_is_named_and_the_run_resumes(
    prefect_api: str, inputs: Path, small_tokenizer: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    config = save_config(tmp_path / "c.json", raw_config(output, inputs, small_tokenizer))
    process = start("pack-sft", config, "--runner", "processes", "--json")
    until(process, lambda: any(held(output)))
    path, worker = next(held(output))
    children = descendants(process)
    assert worker in [child.pid for child in children]
    # It cannot finish while it is looked at.
    os.kill(worker, signal.SIGSTOP)
    in_work = is_locked(path)
    os.kill(worker, signal.SIGKILL)
    killed = time.monotonic()
    told, errors = process.communicate(timeout=300)
    assert time.monotonic() - killed < HANG_S
    assert process.returncode == 1, errors
    error = json.loads(told.splitlines()[-1])["error"]
    assert error["code"] == "worker_killed"
    assert "by SIGKILL" in error["message"] and "out of memory?" in error["message"]
    assert not in_work or re.fullmatch(r"tokenize (small|big \d/\d)", error["where"])
    assert "BrokenProcessPool" not in errors and "Traceback" not in errors
    assert not psutil.wait_procs(children, timeout=10)[1]

    kept = stage_files(output, "*/receipts/*.json")
    succeed("pack-sft", config)
    assert not changed(kept, stage_files(output, "*/receipts/*.json")) & kept.keys()
    assert validate_path(output).ok
