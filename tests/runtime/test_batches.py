"""Many parts in few task runs: the same receipts as with a task run each, and nothing lost by sharing one."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sample_work
from prefect import flow, task
from sample_work import STAGE, Job, content, make, make_part
from support import save_receipt
from workloads import environment

from schemas.errors import InputError, StorageError, WorkError
from schemas.run import Receipt
from tasks.report.reuse import Reuse
from tasks.run.receipts import Verify, receipt_key
from tasks.runtime import batches, mapping
from tasks.runtime.batches import Batch, batch_task, cut_batches, look_up
from tasks.runtime.progress import watching
from tasks.runtime.runners import make_runner
from tasks.runtime.settings import run_settings
from tasks.runtime.stopping import stopped

PARTS = 12
# A batch in a process of its own, which a part kills.
KILLED = """
import os, signal, sys
from pathlib import Path
from sample_work import Job, make
from tasks.run.receipts import Verify
from tasks.runtime.batches import Batch

def kernel(job):
    if job.part == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return make(job)

root, trace = sys.argv[1:]
jobs = [Job(part, root, trace) for part in range(12)]
Batch(jobs, [f"make {job.part}" for job in jobs], Path(root), Verify.SIZE, False).make(kernel)
"""


class Place:
    """An output directory and the trace of what was made in it."""

    def __init__(self, root: Path) -> None:
        self.output, self.trace = root / "output", root / "trace"
        self.output.mkdir()

    def jobs(self, parts: int = PARTS) -> list[Job]:
        return [Job(part, str(self.output), str(self.trace)) for part in range(parts)]

    def batch(self, parts: int = PARTS, refresh: bool = False, verify: Verify = Verify.SIZE) -> Batch:
        names = [f"make {part + 1}/{parts}" for part in range(parts)]
        return Batch(self.jobs(parts), names, self.output, verify, refresh)

    def ran(self) -> list[int]:
        """The parts made since the last call, in order."""
        lines = self.trace.read_text().splitlines() if self.trace.exists() else []
        self.trace.unlink(missing_ok=True)
        return [int(line.split()[0]) for line in lines]

    def results(self) -> dict[str, str]:
        """What each record says, as it is stored."""
        records = sorted((self.output / f"stages/{STAGE}/receipts").glob("make-*.json"))
        return {record.name: json.loads(record.read_bytes())["result"] for record in records}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def failing(*parts: int, error: Exception | None = None) -> Any:
    def kernel(job: Job) -> Receipt:
        if job.part in parts:
            raise error or InputError("this row is broken", where="in.jsonl:7")
        return make(job)

    return kernel


def test_a_part_is_made_once(place: Place) -> None:
    first = place.batch().make(make)
    assert place.ran() == list(range(PARTS)) and first.reused == 0
    again = place.batch().make(make)
    assert place.ran() == [] and again.reused == PARTS
    assert again.receipts == first.receipts
    assert [receipt.part for receipt in first.receipts] == list(range(PARTS))
    assert look_up(place.output, place.jobs(), Verify.SHA256) == list(first.receipts)


def test_what_is_damaged_is_made_again(place: Place) -> None:
    place.batch().make(make)
    place.ran()
    (place.output / f"stages/{STAGE}/data-3.bin").unlink()
    (place.output / f"stages/{STAGE}/data-4.bin").write_bytes(b"X" + content(4)[1:])
    (place.output / receipt_key(STAGE, "make", 7)).write_bytes(b"{")
    found = look_up(place.output, place.jobs(), Verify.SHA256)
    assert [part for part, receipt in enumerate(found) if receipt is None] == [3, 4, 7]
    assert place.batch(verify=Verify.SHA256).make(make).reused == PARTS - 3
    assert place.ran() == [3, 4, 7]
    place.batch(refresh=True).make(make)
    assert place.ran() == list(range(PARTS))


def test_a_part_that_fails_names_itself_and_the_rest_is_kept(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InputError) as caught, caplog.at_level(logging.ERROR, "gristmill.runtime"):
        place.batch().make(failing(4))
    assert (caught.value.where, caught.value.code) == ("in.jsonl:7", "bad_input")
    assert caught.value.message == "this row is broken (in make 5/12)" == str(caught.value.args[0])
    assert "make 5/12 failed: [bad_input] in.jsonl:7: this row is broken" in caplog.text
    assert place.ran() == [part for part in range(PARTS) if part != 4]
    place.batch().make(make)
    assert place.ran() == [4]


def test_of_several_that_fail_the_first_is_named_and_the_others_counted(place: Place) -> None:
    with pytest.raises(InputError, match=r"\(in make 3/12; 2 more of its batch failed, see the run's log\)"):
        place.batch().make(failing(2, 3, 11))
    with pytest.raises(ZeroDivisionError) as caught:
        place.batch().make(failing(2, error=ZeroDivisionError("oh")))
    assert caught.value.__notes__ == ["in make 3/12"]


def test_another_attempt_makes_only_what_is_missing(place: Place) -> None:
    error = StorageError("cannot write")
    error.__cause__ = OSError(errno.ENOSPC, "full")
    for refresh in (False, True):
        batch = place.batch(refresh=refresh)
        with pytest.raises(StorageError):
            batch.make(failing(6, error=error))
        place.ran()
        assert len(batch.make(make).receipts) == PARTS
        # A forced run makes no part twice.
        assert place.ran() == [6]
        (place.output / receipt_key(STAGE, "make", 6)).unlink()


def test_a_killed_batch_resumes_part_by_part(place: Place) -> None:
    command = [sys.executable, "-c", KILLED, str(place.output), str(place.trace)]
    here = str(Path(sample_work.__file__).parent)
    path = os.pathsep.join([here, os.environ["PYTHONPATH"]])
    assert subprocess.run(command, env=environment(PYTHONPATH=path)).returncode == -signal.SIGKILL
    assert place.ran() == [0, 1, 2, 3, 4]
    assert place.batch().make(make).reused == 5
    assert place.ran() == list(range(5, PARTS))


def test_an_interrupted_batch_ends_after_its_current_part(place: Place) -> None:
    def interrupted(job: Job) -> Receipt:
        if job.part == 2:
            stopped.set()
        return make(job)

    try:
        with pytest.raises(WorkError, match="run it again to resume"):
            place.batch().make(interrupted)
    finally:
        stopped.clear()
    assert place.ran() == [0, 1, 2]
    assert place.batch().make(make).reused == 3


def test_two_runs_make_each_part_once(place: Place) -> None:
    made = []
    threads = [threading.Thread(target=lambda: made.append(place.batch(30).make(make))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(place.ran()) == list(range(30))
    assert made[0].receipts == made[1].receipts == made[2].receipts
    assert sum(one.reused for one in made) == 60


@pytest.mark.parametrize("count", [0, 1, 5, 199, 200, 201, 1000, 20_001])
def test_batches_are_few_in_order_and_about_equal(count: int) -> None:
    weights = [1 + number * 7919 % 97 for number in range(count)]
    cut = cut_batches(range(count), weights, most=200)
    assert [number for batch in cut for number in batch] == list(range(count))
    assert len(cut) <= 200 and all(cut)
    if count >= 1000:
        loads = [sum(weights[number] for number in batch) for batch in cut]
        assert max(loads) <= sum(weights) / 200 + max(weights)


# On a server.


class Watched:
    """What a watcher is told last."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def started(self, *told: Any) -> None:
        self.told.append(told)

    def advanced(self, *told: Any) -> None:
        self.told.append(told)

    def ended(self, *told: Any) -> None:
        self.told.append(told[:-1])


def run(place: Place, jobs: Sequence[Any], runner: str = "threads", step: Any = make_part) -> list[Receipt]:
    @flow(name="many", persist_result=False, task_runner=make_runner(runner, 2))
    def many() -> list[Receipt]:
        return mapping.each_with_receipts(place.output, Verify.SIZE, reuse=place.reuse)(step, jobs)  # type: ignore[attr-defined]

    place.reuse = Reuse()  # type: ignore[attr-defined]
    with run_settings():
        return many()


@pytest.fixture
def few_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "MOST_TASKS", 4)


@pytest.mark.parametrize("runner", ["threads", "processes"])
def test_batches_leave_what_single_tasks_leave(
    prefect_api: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runner: str
) -> None:
    places = {}
    for name, most in (("single", 200), ("batches", 4)):
        (tmp_path / name).mkdir()
        places[name] = Place(tmp_path / name)
        monkeypatch.setattr(mapping, "MOST_TASKS", most)
        receipts = run(places[name], places[name].jobs(), runner)
        assert [receipt.part for receipt in receipts] == list(range(PARTS))
        assert sorted(places[name].ran()) == list(range(PARTS))
    assert places["single"].results() == places["batches"].results()
    # Each finds what the other left.
    for name, most in (("single", 4), ("batches", 200)):
        monkeypatch.setattr(mapping, "MOST_TASKS", most)
        assert run(places[name], places[name].jobs(), runner) == receipts
        assert places[name].ran() == []
        assert places[name].reuse.steps == {"make_part": [0, PARTS]}  # type: ignore[attr-defined]


def test_parts_are_counted_not_batches(prefect_api: str, place: Place, few_tasks: None) -> None:
    for part in (1, 2):
        save_receipt(place.output, make(place.jobs()[part]))
    place.ran()
    watched = Watched()
    with watching(watched):
        run(place, place.jobs())
    assert sorted(place.ran()) == [0, *range(3, PARTS)]
    assert watched.told[:2] == [("make_part", PARTS), ("make_part", 2, 2)]
    assert watched.told[-1] == ("make_part", PARTS, 2)
    assert len(watched.told) == 2 + 4 + 1
    assert place.reuse.steps == {"make_part": [PARTS - 2, 2]}  # type: ignore[attr-defined]


def test_a_flow_fails_with_the_part_and_keeps_the_rest(
    prefect_api: str, place: Place, few_tasks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(mapping.RETRIES, "retry_delay_seconds", [0.01] * 3)
    tries: list[int] = []

    @task(name="flaky")
    def flaky(job: Any) -> Receipt:
        tries.append(job.part)
        if job.part == 1 and tries.count(1) < 3:
            error = StorageError("cannot write")
            error.__cause__ = OSError(errno.EIO, "hiccup")
            raise error
        if job.part == 2:
            raise InputError("this row is broken", where="in.jsonl:7")
        return make(job)

    with pytest.raises(InputError, match=r"this row is broken \(in flaky 3/12\)"):
        run(place, place.jobs(), step=flaky)
    assert (tries.count(0), tries.count(1), tries.count(2)) == (1, 3, 3)
    place.ran()
    run(place, place.jobs())
    assert {2} <= set(place.ran()) <= {*range(2, PARTS)}


def test_a_killed_worker_process_is_told_by_its_part(prefect_api: str, place: Place, few_tasks: None) -> None:
    jobs = [*place.jobs(5), *(Job(part, str(place.output), "") for part in (5,)), *place.jobs()[6:]]
    with pytest.raises(WorkError) as caught:
        run(place, jobs, "processes", killed_by_part)
    assert (caught.value.code, caught.value.where) == ("worker_killed", "killed_by_part 6/12")
    run(place, place.jobs(), "processes")
    assert place.ran().count(5) == 1


@task
def killed_by_part(job: Any) -> Receipt:
    if not job.trace:
        os.kill(os.getpid(), signal.SIGKILL)
    return make(job)


def test_a_batch_is_one_task_run(place: Place) -> None:
    made = batch_task(make_part)
    assert made.name == make_part.name and not made.persist_result
    assert made.fn(place.batch()).receipts
    assert batches.MOST_TASKS == 200
