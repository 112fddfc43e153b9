"""pack-sft is killed, again and again, and then run to its end: the bytes are those of an undisturbed run."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import workloads
from file_events import hook_environment
from serial_runs import Runs
from support import published_digests
from workloads import make_inputs, raw_config, run_cli, save_config, temporary_files

from tasks.outputs.validate import validate_path
from tasks.run.manifest import read_manifest

_KILLED = -signal.SIGKILL


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    started = Runs()
    yield started
    started.close()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs"), big_files=1)


class Undisturbed:
    """What a run gives that nobody kills.

    Attributes:
        run_hash, digests: of the run and its published files.
        seconds: how long it took.
        changes: how often it changed its output folder.
    """

    def __init__(self, runs: Runs, config: dict[str, Any]) -> None:
        started = time.monotonic()
        assert runs.run(config) == 0
        self.seconds = time.monotonic() - started
        self.changes = runs.changes
        folder = Path(config["output_dir"], "latest").resolve()
        self.run_hash = folder.name
        self.digests = published_digests(folder)


@pytest.fixture(scope="module")
def undisturbed(
    runs: Runs, inputs: Path, small_tokenizer: Path, tmp_path_factory: pytest.TempPathFactory
) -> Undisturbed:
    output = tmp_path_factory.mktemp("undisturbed")
    return Undisturbed(runs, raw_config(output, inputs, small_tokenizer))


def check_consumers_view(output: Path, undisturbed: Undisturbed) -> None:
    """After a kill: `latest` leads to a complete run or is not there; no published name leads elsewhere."""
    latest = output / "latest"
    if not latest.is_symlink():
        assert not any((output / name).is_symlink() for name in ("blend.json", "splits"))
        return
    assert latest.resolve().name == undisturbed.run_hash
    read_manifest(latest)
    assert validate_path(output, full=False).ok
    assert published_digests(latest.resolve()) == undisturbed.digests


def check_finished(output: Path, undisturbed: Undisturbed) -> None:
    """After the last run: everything is published, with the right bytes, and nothing is left lying about."""
    assert (output / "latest").resolve() == (output / "runs" / undisturbed.run_hash).resolve()
    assert published_digests(output / "latest") == undisturbed.digests
    assert (output / "blend.json").is_file() and (output / "splits" / "train").is_dir()
    verdict = validate_path(output)
    assert verdict.ok, verdict.errors
    assert list(temporary_files(output)) == []


def _moments(changes: int, spread: int) -> list[int]:
    """Which change of the output folder a kill comes before: the first, the last ones, and some between."""
    ends = {1, 2, 3, *range(changes - 7, changes + 1)}
    rng = random.Random(7)
    step = changes / spread
    return sorted(ends | {int((k + rng.random()) * step) + 1 for k in range(spread)})


def test_a_kill_before_any_change_of_the_output_folder_loses_nothing(
    runs: Runs, inputs: Path, small_tokenizer: Path, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    for moment in _moments(undisturbed.changes, 9):
        output = tmp_path / f"{moment:04d}"
        config = raw_config(output, inputs, small_tokenizer)
        assert runs.run(config, die_before=moment) == _KILLED, moment
        check_consumers_view(output, undisturbed)
        assert runs.run(config) == 0, moment
        check_finished(output, undisturbed)


def test_a_kill_at_a_random_time_loses_nothing(
    runs: Runs, inputs: Path, small_tokenizer: Path, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    rng = random.Random(11)
    kills = attempts = 0
    seconds = undisturbed.seconds
    while kills < 8:
        attempts += 1
        assert attempts <= 40, "the kills come too late"
        output = tmp_path / str(attempts)
        config = raw_config(output, inputs, small_tokenizer)
        code = runs.run(config, kill_after_s=seconds * rng.random())
        assert code in (_KILLED, 0)
        kills += code == _KILLED
        if code == 0:
            # The machine is faster by now than when the time was taken.
            seconds *= 0.8
        check_consumers_view(output, undisturbed)
        assert runs.run(config) == 0
        check_finished(output, undisturbed)


def test_a_run_killed_over_and_over_still_ends(
    runs: Runs, inputs: Path, small_tokenizer: Path, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    config = raw_config(tmp_path / "out", inputs, small_tokenizer)
    code, kills = _KILLED, 0
    while code == _KILLED:
        # Each attempt may do a little more than the one before.
        code = runs.run(config, die_before=40 * (kills + 1))
        kills += code == _KILLED
        check_consumers_view(tmp_path / "out", undisturbed)
    assert code == 0 and kills >= 3
    check_finished(tmp_path / "out", undisturbed)


def test_a_kill_while_publishing_leaves_the_old_run(
    runs: Runs, inputs: Path, small_tokenizer: Path, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    config = raw_config(tmp_path / "old", inputs, small_tokenizer)
    assert runs.run(config) == 0
    # A new weight re-makes nothing in the stages: all changes are of the run folder and the links.
    config["datasets"][0]["weight"] = 9
    workloads.clone(tmp_path / "old", tmp_path / "new")
    new = Undisturbed(runs, {**config, "output_dir": str(tmp_path / "new")})
    assert new.run_hash != undisturbed.run_hash
    views = set()
    for moment in _moments(new.changes, 5):
        output = workloads.clone(tmp_path / "old", tmp_path / f"{moment:04d}")
        attempt = {**config, "output_dir": str(output)}
        assert runs.run(attempt, die_before=moment) == _KILLED, moment
        seen = new if (output / "latest").resolve().name == new.run_hash else undisturbed
        views.add(seen.run_hash)
        check_consumers_view(output, seen)
        assert runs.run(attempt) == 0, moment
        check_finished(output, new)
    assert undisturbed.run_hash in views


@pytest.mark.parametrize(
    ("runner", "moment"),
    [
        ("threads", r"os\.rename stages/\w+/part-000000\.spool"),
        ("processes", r"open stages/\w+/receipts/pack-000002\.json"),
        ("threads", r"os\.link runs/.*shard_000001"),
    ],
)
def test_the_command_line_killed_with_its_workers_recovers(
    runner: str,
    moment: str,
    prefect_api: str,
    inputs: Path,
    small_tokenizer: Path,
    undisturbed: Undisturbed,
    tmp_path: Path,
) -> None:
    output = tmp_path / "out"
    config = save_config(tmp_path / "c.json", raw_config(output, inputs, small_tokenizer))
    arguments = ("pack-sft", config, "--runner", runner, "--json")
    env = hook_environment(tmp_path / "hook", output, die_at=moment)
    # A session of its own: the hook kills the whole process group.
    killed = subprocess.run(
        workloads.command(*arguments), env=env, start_new_session=True, capture_output=True, timeout=120
    )
    assert killed.returncode == _KILLED, killed.stderr.decode()
    check_consumers_view(output, undisturbed)
    assert list(output.rglob(".*.lock")), "lock files are left, and must not matter"
    # What a kill in the middle of Prefect's own writing leaves, which is not atomic.
    torn = next((output / "stages").glob("*/receipts/*.json"), None)
    if torn is not None:
        os.truncate(torn, torn.stat().st_size // 2)

    again = run_cli(*arguments)

    assert again.returncode == 0, again.stderr
    assert workloads.last_json(again)["run_hash"] == undisturbed.run_hash
    check_finished(output, undisturbed)
