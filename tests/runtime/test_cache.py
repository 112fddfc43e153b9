"""Flows against a real server: what is run, what is not, and what happens after damage and kills."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import pytest
import sample_work
from prefect import task
from sample_work import STAGE, Job, content, make_all, make_all_async
from support import load_receipt, save_receipt

from schemas.errors import ConfigError, IntegrityError, StorageError
from schemas.run import FileRecord, Receipt
from tasks.run.receipts import Verify, receipt_key
from tasks.runtime.cache import ReceiptPolicy, bind
from tasks.runtime.runners import make_runner
from tasks.runtime.settings import run_settings

pytestmark = pytest.mark.usefixtures("prefect_api")

PARTS = 4


class Workspace:
    """An output directory and the trace of what was run into it."""

    def __init__(self, root: Path) -> None:
        self.output = root / "output"
        self.trace = root / "trace"
        self.runner = "threads"

    def jobs(self, parts: int = PARTS, seconds: float = 0.0) -> list[Job]:
        return [Job(part, str(self.output), str(self.trace), seconds) for part in range(parts)]

    def run(self, verify: str = "size", **parameters: Any) -> list[Receipt]:
        run = make_all.with_options(task_runner=make_runner(self.runner, 2))
        with run_settings():
            return run(self.jobs(), verify=verify, **parameters)

    def ran(self) -> list[int]:
        """The parts run since the last call, sorted."""
        if not self.trace.exists():
            return []
        parts = [int(line.split()[0]) for line in self.trace.read_text().splitlines()]
        self.trace.unlink()
        return sorted(parts)

    def data(self, part: int) -> Path:
        return self.output / f"stages/{STAGE}/data-{part}.bin"

    def record(self, part: int) -> Path:
        return self.output / receipt_key(STAGE, "make", part)

    def start(self, *options: str) -> subprocess.Popen[str]:
        """The same flow in another process, about to run its tasks."""
        command = [sys.executable, sample_work.__file__, str(self.output), str(self.trace), *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process


@pytest.fixture
def job(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


@pytest.fixture
def done(job: Workspace) -> Workspace:
    """A workspace whose parts are all made."""
    job.run()
    assert job.ran() == [0, 1, 2, 3]
    return job


@pytest.mark.parametrize("runner", ["threads", "processes"])
def test_second_run_runs_nothing(job: Workspace, runner: str) -> None:
    job.runner = runner
    first = job.run()
    assert job.ran() == [0, 1, 2, 3]
    assert [receipt.part for receipt in first] == [0, 1, 2, 3]
    assert job.run(verify="sha256") == first
    assert job.ran() == []
    job.data(2).unlink()
    assert job.run() == first
    assert job.ran() == [2]
    assert [
        load_receipt(job.output, receipt_key(STAGE, "make", part), Verify.SHA256) for part in range(4)
    ] == first


def test_async_tasks_are_cached_too(job: Workspace) -> None:
    with run_settings():
        first = asyncio.run(make_all_async(job.jobs()))
        assert job.ran() == [0, 1, 2, 3]
        job.data(2).unlink()
        assert asyncio.run(make_all_async(job.jobs())) == first
    assert job.ran() == [2]


def test_the_same_work_twice_in_one_flow_runs_once(job: Workspace) -> None:
    jobs = job.jobs(1, seconds=0.2) * 4
    with run_settings():
        make_all.with_options(task_runner=make_runner("threads", 4))(jobs)
    assert job.ran() == [0]


def test_moved_output_directory_keeps_its_hits(done: Workspace) -> None:
    done.output = done.output.rename(done.output.with_name("elsewhere"))
    done.run(verify="sha256")
    assert done.ran() == []
    done.data(1).unlink()
    done.run()
    assert done.ran() == [1]
    assert done.data(1).read_bytes() == content(1)


@pytest.mark.parametrize(
    ("damage", "verify", "again"),
    [
        (lambda path: path.unlink(), "size", [2]),
        (lambda path: path.unlink(), "off", []),
        (lambda path: path.write_bytes(content(2)[:-1]), "size", [2]),
        (lambda path: path.write_bytes(b"X" + content(2)[1:]), "size", []),
        (lambda path: path.write_bytes(b"X" + content(2)[1:]), "sha256", [2]),
    ],
    ids=["deleted", "deleted-off", "truncated", "flipped", "flipped-sha256"],
)
def test_damaged_output_is_made_again(
    done: Workspace, damage: Any, verify: str, again: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    damage(done.data(2))
    done.run(verify=verify)
    assert done.ran() == again
    assert (done.data(2).name in caplog.text) == bool(again)
    done.run(verify=verify)
    assert done.ran() == []


def test_torn_record_is_made_again(done: Workspace) -> None:
    whole = done.record(1).read_bytes()
    done.record(1).write_bytes(whole[: len(whole) // 2])
    done.record(2).write_bytes(b"")
    done.run()
    assert done.ran() == [1, 2]
    assert done.record(1).read_bytes() == whole


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("form", ["metadata", "old format"])
def test_planted_pickle_is_not_executed(done: Workspace, tmp_path: Path, form: str) -> None:
    from prefect.filesystems import LocalFileSystem
    from prefect.results import ResultStore

    boom = tmp_path / "boom"
    record = json.loads(done.record(2).read_text())
    planted = {"type": "pickle"}
    if form == "metadata":
        record["metadata"]["serializer"] = planted
    else:
        record["serializer"] = planted
    record["result"] = base64.encodebytes(cloudpickle.dumps(Bomb(boom))).decode()
    done.record(2).write_text(json.dumps(record))

    done.run()
    assert not boom.exists()
    assert done.ran() == [2]
    assert load_receipt(done.output, receipt_key(STAGE, "make", 2), Verify.SHA256) is not None

    # The bomb is live: Prefect by itself sets it off by asking whether the record exists.
    done.record(2).write_text(json.dumps(record))
    ResultStore(result_storage=LocalFileSystem(basepath=str(done.output))).exists(
        receipt_key(STAGE, "make", 2)
    )
    assert boom.exists()


def test_record_that_cannot_be_checked_fails_the_task(done: Workspace) -> None:
    done.record(2).unlink()
    done.record(2).mkdir()
    with pytest.raises(StorageError, match="cannot read"):
        done.run()
    assert done.ran() == []


def test_receipts_saved_without_prefect_are_hits(job: Workspace) -> None:
    for part in range(PARTS):
        data = content(part)
        job.data(part).parent.mkdir(parents=True, exist_ok=True)
        job.data(part).write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        path = job.data(part).relative_to(job.output).as_posix()
        save_receipt(
            job.output,
            Receipt(
                task="make",
                stage=STAGE,
                part=part,
                files=(FileRecord(path=path, bytes=len(data), sha256=digest),),
            ),
        )
    job.run(verify="sha256")
    assert job.ran() == []


def test_refresh_runs_everything(done: Workspace) -> None:
    done.run(refresh=True)
    assert done.ran() == [0, 1, 2, 3]
    done.run()
    assert done.ran() == []


def test_work_without_a_receipt_key_fails(job: Workspace) -> None:
    @task
    def wrong(job: Any) -> None:
        raise AssertionError("must not run")

    bound = bind(wrong, job.output, Verify.SIZE)
    for value in ({"stage": STAGE}, Job(0, "", "", stage="../x"), Job(part="x", output_dir="", trace="")):  # type: ignore[arg-type]
        with pytest.raises(IntegrityError) as caught:
            bound(value)
        assert caught.value.code == "bad_key"


def test_binding_needs_a_parameter_named_job(tmp_path: Path) -> None:
    @task
    def wrong(part: Any) -> None: ...

    with pytest.raises(TypeError, match="'job'"):
        bind(wrong, tmp_path, Verify.SIZE)


def test_policy_can_be_copied_and_pickled(tmp_path: Path) -> None:
    policy = ReceiptPolicy(output_dir=str(tmp_path), verify="sha256")
    for clone in (policy.configure(), cloudpickle.loads(cloudpickle.dumps(policy))):
        assert clone.lock_manager.verify is Verify.SHA256
        assert clone.lock_manager.root == tmp_path.resolve()
        assert clone.isolation_level == "SERIALIZABLE"


def test_two_processes_started_together_run_each_part_once(job: Workspace, tmp_path: Path) -> None:
    go = tmp_path / "go"
    both = [job.start("--seconds", "0.3", "--gate", str(go)) for _ in range(2)]
    go.touch()
    assert [process.wait(60) for process in both] == [0, 0]
    for process in both:
        process.stdout.close()  # type: ignore[union-attr]
    assert job.ran() == [0, 1, 2, 3]


@pytest.mark.parametrize("runner", ["threads", "processes"])
def test_killed_in_the_middle(job: Workspace, runner: str) -> None:
    process = job.start("--seconds", "60", "--parts", "2", "--runner", runner)
    deadline = time.monotonic() + 60
    while not (job.trace.exists() and job.trace.read_text().count("\n") == 2):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    family = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()  # type: ignore[union-attr]
    assert job.ran() == [0, 1]

    started = time.monotonic()
    job.run()
    assert job.ran() == [0, 1, 2, 3]
    # Far less than the 60 s the killed tasks would have taken.
    assert time.monotonic() - started < 30
    # The workers ended with their parent.
    _, alive = psutil.wait_procs(family, timeout=5)
    assert alive == []


@pytest.mark.parametrize(
    ("kind", "workers", "code"), [("dusk", 2, "unknown_runner"), ("threads", 0, "bad_workers")]
)
def test_unknown_runner(kind: str, workers: int, code: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_runner(kind, workers)
    assert caught.value.code == code
    if code == "unknown_runner":
        assert "threads, processes" in caught.value.message
