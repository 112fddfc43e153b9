"""A flow whose tasks leave a trace, importable by worker processes; `python sample_work.py` runs it."""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import flow, task

from schemas.run import FileRecord, Receipt
from tasks.run.receipts import Verify
from tasks.runtime.cache import bind
from tasks.runtime.runners import make_runner
from tasks.runtime.settings import run_settings

STAGE = "0123456789abcdef"


@dataclass(frozen=True)
class Job:
    """One part to make; `trace` gets a line when it starts."""

    part: int
    output_dir: str
    trace: str
    seconds: float = 0.0
    stage: str = STAGE
    task: str = "make"


def content(part: int) -> bytes:
    return f"part {part}\n".encode() * 100


def make(job: Job) -> Receipt:
    with Path(job.trace).open("a") as trace:
        trace.write(f"{job.part} {os.getpid()}\n")
    time.sleep(job.seconds)
    data = content(job.part)
    path = f"stages/{job.stage}/data-{job.part}.bin"
    target = Path(job.output_dir, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    record = FileRecord(path=path, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    return Receipt(
        task=job.task, stage=job.stage, part=job.part, files=(record,), statistics={"rows": job.part}
    )


@task
def make_part(job: Job) -> Receipt:
    return make(job)


@task
async def make_part_async(job: Job) -> Receipt:
    return make(job)


@flow
def make_all(jobs: list[Any], verify: str = "size", refresh: bool = False, gate: str = "") -> list[Receipt]:
    print("ready", flush=True)
    while gate and not Path(gate).exists():
        time.sleep(0.01)
    part = bind(make_part, Path(jobs[0].output_dir), Verify(verify), refresh)
    return [future.result() for future in part.map(jobs)]


@flow
async def make_all_async(jobs: list[Any]) -> list[Receipt]:
    part = bind(make_part_async, Path(jobs[0].output_dir), Verify.SIZE)
    return [await part(job) for job in jobs]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("output_dir")
    parser.add_argument("trace")
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--runner", default="threads")
    parser.add_argument("--gate", default="", help="inside the flow, wait for this file")
    arguments = parser.parse_args()
    # The tasks of a process pool must come from an importable module, not from __main__.
    import sample_work

    jobs = [
        sample_work.Job(part, arguments.output_dir, arguments.trace, arguments.seconds)
        for part in range(arguments.parts)
    ]
    run = sample_work.make_all.with_options(task_runner=make_runner(arguments.runner, 2))
    with run_settings():
        run(jobs, gate=arguments.gate)


if __name__ == "__main__":
    main()
