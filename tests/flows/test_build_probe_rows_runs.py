"""build-probe-rows through the command line, a real Prefect server, and kill -9."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from array_record.python.array_record_module import ArrayRecordReader
from file_events import hook_environment
from support import published_digests, run_serially
from workloads import ROOT, command, last_json, run_cli, save_config, succeed, temporary_files

from tasks.demo.measurements import ROWS, write_measurements
from tasks.outputs.validate import validate_path

_KILLED = -signal.SIGKILL


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measurements")
    write_measurements(folder)
    return folder


def raw_config(source: Path, output_dir: Path | str, **changes: Any) -> dict[str, Any]:
    return {"input": str(source), "output_dir": str(output_dir), "max_record_bytes": 8_192, **changes}


@pytest.fixture(scope="module")
def finished(source: Path, prefect_api: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What an undisturbed run printed."""
    folder = tmp_path_factory.mktemp("finished")
    config = save_config(folder / "c.json", raw_config(source, folder / "out"))
    return succeed("build-probe-rows", config, "--workers", "1")


@pytest.mark.parametrize("changes", [{"partitions": 5}, {"partitions": 1, "spill_dir": "spill"}])
def test_partitions_and_spill_folder_change_no_byte(
    changes: dict[str, Any], source: Path, finished: dict[str, Any], tmp_path: Path
) -> None:
    if "spill_dir" in changes:
        changes = {**changes, "spill_dir": str(tmp_path / changes["spill_dir"])}
    manifest, _ = run_serially("build-probe-rows", raw_config(source, tmp_path / "out", **changes))
    assert manifest.run_hash == finished["run_hash"]
    assert published_digests(tmp_path / "out" / "latest") == published_digests(Path(finished["run_dir"]))
    assert manifest.ledger.rows_in == ROWS
    assert manifest.ledger.rows_rejected == 160


def no_shard_writer_is_left(output: Path) -> bool:
    """Whether the processes that compress shards below `output` are gone."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = entry.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if "records/process.py" in arguments and str(output) in arguments:
            return False
    return True


@pytest.mark.parametrize(
    ("runner", "moment"),
    [
        ("threads", r"os\.rename stages/\w+/run-000000\.spill"),
        ("processes", r"os\.rename stages/\w+/part-000000\.arrayrecord"),
        ("threads", r"os\.link runs/.*arrayrecord"),
    ],
)
def test_the_command_line_killed_with_its_workers_recovers(
    runner: str,
    moment: str,
    prefect_api: str,
    source: Path,
    finished: dict[str, Any],
    tmp_path: Path,
) -> None:
    output = tmp_path / "out"
    config = save_config(tmp_path / "c.json", raw_config(source, output))
    arguments = ("build-probe-rows", config, "--runner", runner, "--json")
    env = hook_environment(tmp_path / "hook", output, die_at=moment)
    killed = subprocess.run(
        command(*arguments), env=env, start_new_session=True, capture_output=True, timeout=120
    )
    assert killed.returncode == _KILLED, killed.stderr.decode()
    assert not (output / "latest").is_symlink()
    for shard in output.rglob("[!.]*.arrayrecord"):
        assert ArrayRecordReader(str(shard)).num_records() > 0
    torn = next((output / "stages").glob("*/receipts/*.json"), None)
    if torn is not None:
        os.truncate(torn, torn.stat().st_size // 2)

    again = run_cli(*arguments)

    assert again.returncode == 0, again.stderr
    assert last_json(again)["run_hash"] == finished["run_hash"]
    assert published_digests(output / "latest") == published_digests(Path(finished["run_dir"]))
    verdict = validate_path(output)
    assert verdict.ok, verdict.errors
    assert list(temporary_files(output)) == []


WRITING = """
import sys
from pathlib import Path
import numpy as np
from tasks.probes.records.writer import ShardWriter
writer = ShardWriter(Path(sys.argv[1]), "group_size:1")
writer.add(np.array([3]), b"one")
print("written", flush=True)
sys.stdin.read()
"""


def test_the_process_that_compresses_ends_with_the_one_that_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "a.arrayrecord"
    [python, *_] = command()
    child = subprocess.Popen(
        [python, "-c", WRITING, str(path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout is not None and child.stdout.readline() == b"written\n"
        assert not no_shard_writer_is_left(tmp_path)
        child.kill()
    deadline = time.monotonic() + 10
    while not no_shard_writer_is_left(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert not path.exists()
    [left] = temporary_files(tmp_path)
    assert ArrayRecordReader(str(left)).num_records() == 0


@pytest.mark.parametrize(
    ("change", "code", "wanted"),
    [
        ({"input": "nowhere"}, 2, "[missing_path]"),
        ({"train_ratio": 0}, 2, "train_ratio"),
        ({"max_reject_fraction": 0.001}, 3, "[reject_limit]"),
    ],
)
def test_faults_end_with_their_code_and_one_message(
    change: dict[str, Any], code: int, wanted: str, prefect_api: str, source: Path, tmp_path: Path
) -> None:
    config = save_config(tmp_path / "c.json", raw_config(source, tmp_path / "out", **change))
    done = run_cli("build-probe-rows", config, "--json")
    assert done.returncode == code, done.stderr
    assert wanted in done.stderr and "Traceback" not in done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["error"]["message"]
    assert not (tmp_path / "out" / "latest").exists()
