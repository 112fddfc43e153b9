"""pack-sft from the command line, against a real server: same bytes, what is re-used, what is repaired."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from file_events import hook_environment
from support import Serial, chat, mill_serially, published_digests, write_jsonl
from workloads import (
    changed,
    clone,
    command,
    last_json,
    make_inputs,
    raw_config,
    run_cli,
    save_config,
    stage_files,
    succeed,
)

from flows.pack_sft import mill
from schemas.errors import InputError
from schemas.run import Receipt, RunManifest
from schemas.sft import PackSftConfig
from tasks.outputs.validate import validate_path
from tasks.sft.identity import identify

pytestmark = pytest.mark.usefixtures("prefect_api")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, inputs: Path, small_tokenizer: Path) -> RunManifest:
    """An undisturbed run in this process: one thread, no Prefect. `environment` holds its digests."""
    output = tmp_path_factory.mktemp("reference")
    manifest, serial = mill_serially(PackSftConfig.parse(raw_config(output, inputs, small_tokenizer)))
    steps = Counter(task for task, _ in serial.executed)
    # What the tests below rely on: many tasks, several parts, shards in every split, rejects, duplicates.
    assert steps["tokenize"] == 11 and steps["cut"] == 2 and steps["pack"] > 15
    assert set(manifest.statistics["splits"]) == {"train", "valid", "test"}
    assert manifest.statistics["splits"]["train"]["small"]["shards"] > 2
    assert manifest.ledger.duplicates and len(manifest.ledger.rejected) == 4
    assert validate_path(output).ok
    return manifest.model_copy(update={"environment": published_digests(output / "runs" / manifest.run_hash)})


class Finished:
    """A finished run: its output folder, configuration file and report."""

    def __init__(self, output: Path, config: Path, report: dict[str, Any]) -> None:
        self.output = output
        self.config = config
        self.report = report

    @property
    def folder(self) -> Path:
        return self.output / "runs" / self.report["run_hash"]

    def again(self, *options: str | Path, **variables: str) -> dict[str, Any]:
        return succeed("pack-sft", self.config, "--output-dir", self.output, *options, **variables)

    def clone(self, output: Path) -> Finished:
        return Finished(clone(self.output, output), self.config, self.report)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, inputs: Path, small_tokenizer: Path) -> Finished:
    """A run by the command line with one worker; clone it before changing it."""
    folder = tmp_path_factory.mktemp("finished")
    config = save_config(folder / "config.json", raw_config(folder / "out", inputs, small_tokenizer))
    report = succeed("pack-sft", config, "--workers", "1", PYTHONHASHSEED="0")
    return Finished(folder / "out", config, report)


@pytest.fixture
def done(finished: Finished, tmp_path: Path) -> Finished:
    """The finished run, to do with as one likes."""
    return finished.clone(tmp_path / "out")


# Same configuration, same bytes.


def test_one_worker_on_prefect_gives_the_bytes_of_the_serial_run(
    finished: Finished, reference: RunManifest
) -> None:
    assert finished.report["run_hash"] == reference.run_hash
    assert published_digests(finished.folder) == reference.environment
    manifest = RunManifest.model_validate_json((finished.folder / "manifest.json").read_bytes())
    # The notes are of this execution: where it wrote, and what it ran.
    own = {"environment", "notes", "manifest_sha256"}
    assert manifest.model_dump(exclude=own) == reference.model_dump(exclude=own)


def test_relative_paths_from_another_folder_give_the_same_bytes(
    inputs: Path, small_tokenizer: Path, reference: RunManifest, tmp_path: Path
) -> None:
    (tmp_path / "data").symlink_to(inputs)
    (tmp_path / "tok").symlink_to(small_tokenizer)
    save_config(tmp_path / "config.yaml", raw_config("out", "data", "./tok"))
    report = succeed("pack-sft", "config.yaml", "--workers", "2", cwd=tmp_path, PYTHONHASHSEED="1")
    assert report["run_dir"] == f"out/runs/{reference.run_hash}"
    assert published_digests(tmp_path / report["run_dir"]) == reference.environment


@pytest.mark.parametrize(("runner", "workers", "hash_seed"), [("threads", 7, "2"), ("processes", 2, "3")])
def test_workers_runners_listing_order_and_hash_seed_change_no_byte(
    runner: str, workers: int, hash_seed: str, small_tokenizer: Path, reference: RunManifest, tmp_path: Path
) -> None:
    elsewhere = make_inputs(tmp_path / "elsewhere", order=-1)
    config = save_config(tmp_path / "c.json", raw_config(tmp_path / "out", elsewhere, small_tokenizer))
    options = ("--runner", runner, "--workers", str(workers))
    report = succeed("pack-sft", config, *options, PYTHONHASHSEED=hash_seed)
    assert report["run_hash"] == reference.run_hash
    assert published_digests(Path(report["run_dir"])) == reference.environment


# What the command line prints.


def test_the_report_says_what_was_made(finished: Finished, reference: RunManifest) -> None:
    report = finished.report
    assert set(report) == {
        "flow", "run_hash", "run_dir", "report", "cached", "seconds", "stats", "warnings", "outputs",
    }  # fmt: skip
    assert Path(report["report"]) == finished.folder / "report.html" and Path(report["report"]).is_file()
    assert report["flow"] == "pack-sft" and report["cached"] is False and report["seconds"] > 0
    assert Path(report["run_dir"]) == finished.folder
    ledger = reference.ledger
    wanted = {
        "rows_in": ledger.rows_in,
        "rows_out": ledger.rows_used,
        "not_selected": 0,
        "filtered": 0,
        "duplicates": ledger.duplicates,
        "rejected": ledger.rejected,
    }
    assert report["stats"].items() >= wanted.items()
    digests = published_digests(finished.folder)
    for output in report["outputs"]:
        assert set(output) == {"path", "bytes", "sha256"}
        assert digests[output["path"]] == output["sha256"]
        assert (finished.folder / output["path"]).stat().st_size == output["bytes"]


def _gzip_cut_short(folder: Path) -> Path:
    whole = gzip.compress(
        b"".join(json.dumps(chat(f"ask {i}", "answer")).encode() + b"\n" for i in range(500))
    )
    path = folder / "cut.jsonl.gz"
    path.write_bytes(whole[: len(whole) // 2])
    return path


def _many_bad_rows(folder: Path) -> Path:
    return write_jsonl(folder / "bad.jsonl", [chat("ask", "answer"), b"{", b"{"])


@pytest.mark.parametrize(
    ("runner", "make", "exit_code", "code", "where"),
    [
        ("threads", _gzip_cut_short, 1, "truncated_input", "{inputs}/cut.jsonl.gz"),
        ("processes", _gzip_cut_short, 1, "truncated_input", "{inputs}/cut.jsonl.gz"),
        ("threads", _many_bad_rows, 3, "reject_limit", "datasets.chats"),
    ],
)
def test_a_failure_inside_the_flow_is_one_message(
    runner: str,
    make: Callable[[Path], Path],
    exit_code: int,
    code: str,
    where: str,
    small_tokenizer: Path,
    tmp_path: Path,
) -> None:
    datasets = [{"name": "chats", "path": str(make(tmp_path))}]
    where = where.format(inputs=tmp_path)
    raw = raw_config(tmp_path / "out", "", small_tokenizer, datasets=datasets)
    config = save_config(tmp_path / "c.json", raw)
    done = run_cli("pack-sft", config, "--json", "--runner", runner)
    assert done.returncode == exit_code
    error = last_json(done)["error"]
    assert set(error) == {"code", "message", "where"}
    assert (error["code"], error["where"]) == (code, where)
    # Where the run can be followed, and the stages that ended well before the one that failed.
    fine = ("follow it at http://", "screen: ", "tokenize: ")
    said = [line for line in done.stderr.splitlines() if not line.startswith(fine)]
    assert said == [f"gristmill: [{code}] {where}: {error['message']}"]
    assert not (tmp_path / "out" / "latest").exists()


def test_debug_shows_the_traceback(small_tokenizer: Path, tmp_path: Path) -> None:
    datasets = [{"name": "chats", "path": str(_gzip_cut_short(tmp_path))}]
    raw = raw_config(tmp_path / "out", "", small_tokenizer, datasets=datasets)
    done = run_cli("pack-sft", save_config(tmp_path / "c.json", raw), "--debug")
    assert done.returncode == 1
    assert "Traceback" in done.stderr and "in screen_dataset" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("gristmill: [truncated_input]")


# What is cached.


def test_a_cached_run_needs_no_prefect_and_no_arrow(done: Finished) -> None:
    arguments = ("pack-sft", done.config, "--output-dir", done.output, "--json")
    again = run_cli(*arguments, PYTHONPROFILEIMPORTTIME="1")
    assert again.returncode == 0
    imported = set(re.findall(r"^import time:.*\| +([\w.]+)$", again.stderr, re.MULTILINE))
    assert "pydantic" in imported
    assert not imported & {"prefect", "numpy", "pyarrow", "duckdb", "jinja2", "transformers", "tokenizers"}
    report = last_json(again)
    assert report["cached"] is True
    assert {**report, "cached": False, "seconds": 0} == {
        **done.report,
        "run_dir": str(done.folder),
        "report": str(done.folder / "report.html"),
        "seconds": 0,
    }


def test_a_moved_output_folder_keeps_every_result(done: Finished, tmp_path: Path) -> None:
    moved = Finished(tmp_path / "far" / "away", done.config, done.report)
    moved.output.parent.mkdir()
    shutil.move(done.output, moved.output)
    assert moved.again()["cached"] is True
    before, published = stage_files(moved.output), published_digests(moved.folder)
    assert sum("/receipts/" in name for name in before) > 25
    (moved.folder / "manifest.json").unlink()
    assert moved.again()["cached"] is False
    assert stage_files(moved.output) == before
    assert published_digests(moved.folder) == published
    assert validate_path(moved.output).ok


def _tasks(names: set[str]) -> Counter[str]:
    """How many receipts of each task are among `names`."""
    return Counter(Path(name).name.split("-")[0] for name in names if "/receipts/" in name)


@pytest.mark.parametrize(
    ("setting", "made"),
    [
        ("pack.size=320", {"pack", "validate"}),
        ("storage.row_group_size=8", {"pack", "validate"}),
        ("datasets[0].weight=5", set()),
    ],
)
def test_a_change_makes_only_what_depends_on_it(done: Finished, setting: str, made: set[str]) -> None:
    before = stage_files(done.output)
    report = done.again("--set", setting)
    assert report["cached"] is False and report["run_hash"] != done.report["run_hash"]
    after = stage_files(done.output)
    new = changed(before, after)
    assert new.isdisjoint(before)
    assert set(_tasks(new)) == made
    assert bool(new) == bool(made)
    assert (done.output / "latest").readlink() == Path(f"runs/{report['run_hash']}")
    assert validate_path(done.output).ok
    # The first run is still there, and coming back to it does nothing.
    assert done.again()["cached"] is True
    assert (done.output / "latest").readlink() == Path(f"runs/{done.report['run_hash']}")


# What is repaired.


def _shards(run: Finished) -> list[Path]:
    return sorted(run.folder.glob("datasets/**/*.parquet"))


def _stage_name(run: Finished, shard: Path) -> str:
    """The stage file a published shard is a second name of, relative to the stages."""
    inode = shard.stat().st_ino
    return next(name for name, (found, _) in stage_files(run.output).items() if found == inode)


def _made_with(stage_name: str) -> set[str]:
    """What the task of a shard made; here every task makes one shard."""
    stage, shard = stage_name.split("/")
    number = shard.removeprefix("shard_").removesuffix(".parquet")
    beside = [f"provenance-{number}.parquet", f"lengths-{number}.npy", f"fills-{number}.npy"]
    return {f"{stage}/{name}" for name in (shard, *beside, f"receipts/pack-{number}.json")}


def test_missing_and_truncated_shards_are_repaired_and_nothing_else(done: Finished) -> None:
    before, published = stage_files(done.output), published_digests(done.folder)
    unlinked, lost, cut = _shards(done)[2:5]
    remade = {_stage_name(done, shard) for shard in (lost, cut)}
    (done.output / "stages" / _stage_name(done, lost)).unlink()
    lost.unlink()
    unlinked.unlink()
    os.truncate(cut, cut.stat().st_size - 1)

    assert done.again()["cached"] is False

    assert published_digests(done.folder) == published
    assert changed(before, stage_files(done.output)) == set.union(*map(_made_with, remade))
    assert validate_path(done.output).ok
    assert done.again()["cached"] is True


def test_a_flipped_byte_is_repaired_under_sha256(done: Finished) -> None:
    before, published = stage_files(done.output), published_digests(done.folder)
    shard = _shards(done)[1]
    name = _stage_name(done, shard)
    damaged = bytearray(shard.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    shard.write_bytes(damaged)
    assert done.again()["cached"] is True, "the size is still right"

    assert done.again("--verify", "sha256")["cached"] is False

    assert published_digests(done.folder) == published
    assert changed(before, stage_files(done.output)) == _made_with(name)
    assert done.again("--verify", "sha256")["cached"] is True


# An input that changes under the run.


class Meddling(Serial):
    """Changes something just before the first step of a name."""

    def __init__(self, output_dir: Path, step: str, meddle: Callable[[], object]) -> None:
        super().__init__(output_dir)
        self._step = step
        self._meddle: Callable[[], object] | None = meddle

    def _before(self, step: Any) -> None:
        if step.name == self._step and self._meddle is not None:
            self._meddle()
            self._meddle = None

    def each(self, step: Any, jobs: Sequence[Any]) -> list[Receipt]:
        self._before(step)
        return super().each(step, jobs)

    def once(self, step: Any, job: Any) -> Any:
        self._before(step)
        return super().once(step, job)


@pytest.mark.parametrize("step", ["tokenize", "cut", "pack", "validate", "publish"])
def test_an_input_that_changes_fails_the_run_and_the_old_run_stays(
    step: str, small_tokenizer: Path, tmp_path: Path
) -> None:
    source = write_jsonl(tmp_path / "in" / "a.jsonl", [chat(f"ask {i}", f"answer {i}") for i in range(50)])
    original = source.read_bytes()
    half = original.splitlines(keepends=True)[:25]
    datasets = [{"name": "chats", "path": str(source)}]
    splits = {"train": 1, "valid": 0, "test": 0}
    raw = raw_config(tmp_path / "out", "", small_tokenizer, datasets=datasets, splits=splits)
    old, _ = mill_serially(PackSftConfig.parse(raw))
    config = PackSftConfig.parse({**raw, "train_on": "all"})
    expected, _ = mill_serially(config.model_copy(update={"output_dir": str(tmp_path / "undisturbed")}))

    meddling = Meddling(tmp_path / "out", step, lambda: source.write_bytes(b"".join(half)))
    with pytest.raises(InputError) as caught:
        mill(config, identify(config), meddling.each, meddling.once)

    assert (caught.value.code, caught.value.where) == ("input_changed", str(source))
    assert caught.value.exit_code == 1
    assert (tmp_path / "out" / "latest").readlink() == Path(f"runs/{old.run_hash}")
    assert validate_path(tmp_path / "out").ok
    # With the input as it was, nothing made of the changed bytes is taken for it.
    source.write_bytes(original)
    manifest, _ = mill_serially(config)
    assert manifest.run_hash == expected.run_hash
    assert published_digests(tmp_path / "out" / "latest") == published_digests(
        tmp_path / "undisturbed/latest"
    )


# Two at once.


def test_two_equal_runs_at_once_both_succeed_and_do_each_step_once(
    inputs: Path, small_tokenizer: Path, reference: RunManifest, tmp_path: Path
) -> None:
    output, log = tmp_path / "out", tmp_path / "events"
    config = save_config(tmp_path / "c.json", raw_config(output, inputs, small_tokenizer))
    # Whoever comes first holds a lock until the other one has asked for one too.
    env = hook_environment(tmp_path / "hook", output, log=log, wait_at=r"open .*/\.tmp-part-000000\.spool")
    runs = [
        subprocess.Popen(
            command("pack-sft", config, "--json"),
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        deadline = time.monotonic() + 180
        while len(_processes_at(log, r"open stages/\w+/receipts/\.tokenize-.*\.lock")) < 2:
            assert time.monotonic() < deadline, "one of the runs does not lock its receipts"
            time.sleep(0.02)
        (tmp_path / "hook" / "gate").touch()
        for run in runs:
            stdout, stderr = run.communicate(timeout=120)
            assert run.returncode == 0, stderr
            assert json.loads(stdout.splitlines()[-1])["run_hash"] == reference.run_hash
    finally:
        for run in runs:
            run.kill()
            run.communicate()
    assert published_digests(output / "latest") == reference.environment
    made = Counter(re.findall(r"^\d+ os\.rename stages/(\w+/.+)$", log.read_text(), re.MULTILINE))
    assert sum(path.endswith(".spool") for path in made) == 11
    assert sum(path.endswith(".parquet") for path in made) > 15
    assert {path: times for path, times in made.items() if times != 1} == {}


def _processes_at(log: Path, pattern: str) -> set[str]:
    """Which processes have come to a change that `pattern` describes."""
    lines = log.read_text().splitlines() if log.exists() else []
    return {line.split()[0] for line in lines if re.search(pattern, line)}
