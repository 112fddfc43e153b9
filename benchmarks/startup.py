"""What Prefect adds to a run: on a running server, embedded, from a form, and to each of many tasks.

    python -m benchmarks.startup              # three minutes
    python -m benchmarks.startup --seconds 6  # a shorter run of 100 tasks

A server of `gristmill up` is started with a state folder of its own. A command's time is taken over that of the same
steps called one after the other in a process of their own, imports included.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import deepseek_folder, report
from benchmarks.tokenizing import TEMPLATES, chat_rows
from tasks.server.state import Record, State

REPEATS = 5
TASKS = 100
CONVERSATIONS = 500
_ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
_DIRECT = """
import json, sys
from benchmarks.common import pack_sft_in_this_thread
pack_sft_in_this_thread(json.loads(sys.argv[1]))
"""
_TASKS = """
import sys, time
from prefect import flow, task
from prefect.task_runners import ThreadPoolTaskRunner
from tasks.runtime.settings import run_settings

def kernel(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass

step = task(kernel, persist_result=False)

@flow(persist_result=False, task_runner=ThreadPoolTaskRunner(max_workers=1))
def many(count, seconds):
    for future in [step.submit(seconds) for _ in range(count)]:
        future.result()

count, seconds = int(sys.argv[1]), float(sys.argv[2])
with run_settings():
    many(1, 0)
    start = time.perf_counter()
    many(count, seconds)
print(time.perf_counter() - start)
"""


def seconds_of(command: list[str], environ: dict[str, str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def trigger_to_task(record: Record, name: str) -> float:
    """Seconds from the request of a run to the start of its first task."""
    [deployment] = [
        entry for entry in record.call("deployments/filter", {"limit": 200}) if entry["name"] == name
    ]
    began = time.time()
    run = record.call(f"deployments/{deployment['id']}/create_flow_run", {})["id"]
    while record.call(f"flow_runs/{run}")["state_type"] not in _ENDED:
        time.sleep(0.1)
    starts: list[Any] = []
    while not starts:
        tasks = record.call("task_runs/filter", {"flow_runs": {"id": {"any_": [run]}}})
        starts = [task["start_time"] for task in tasks if task["start_time"]]
        time.sleep(0.1)
    return min(datetime.datetime.fromisoformat(start).timestamp() for start in starts) - began


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of the run of 100 tasks")
    seconds = parser.parse_args().seconds
    folder = Path(tempfile.mkdtemp(prefix="gristmill-bench-"))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environ |= {"GRISTMILL_STATE_DIR": str(folder / "state"), "HF_HUB_OFFLINE": "1"}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path.cwd()), environ.get("PYTHONPATH")]))
    gristmill = [sys.executable, "-m", "flows"]
    try:
        source = folder / "chats.jsonl"
        rows = chat_rows()
        source.write_text("".join(json.dumps(next(rows)) + "\n" for _ in range(CONVERSATIONS)))
        raw = {
            "output_dir": str(folder / "out"),
            "datasets": [{"name": "chats", "path": str(source)}],
            "tokenizer": {"path": str(deepseek_folder()), "chat_template": TEMPLATES["generation blocks"]},
        }
        config = folder / "config.json"
        config.write_text(json.dumps(raw))
        run = [*gristmill, "pack-sft", str(config), "--force"]
        direct = [sys.executable, "-c", _DIRECT, json.dumps(raw)]

        embedded = []
        seconds_of(run, environ)  # makes the database
        for _ in range(REPEATS):
            embedded.append(seconds_of(run, environ) - seconds_of(direct, environ))
        up = seconds_of([*gristmill, "up"], environ)
        record = State(folder / "state").read()
        assert record is not None
        running = [seconds_of(run, environ) - seconds_of(direct, environ) for _ in range(REPEATS)]
        triggers = [trigger_to_task(record, "validate") for _ in range(REPEATS)]
        many = [sys.executable, "-c", _TASKS, str(TASKS), str(seconds / TASKS)]
        told = subprocess.run(
            many,
            env=environ
            | {
                "PREFECT_API_URL": record.url,
                "PREFECT_API_AUTH_STRING": record.token,
                "PREFECT_LOGGING_LEVEL": "ERROR",
            },
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        overhead = float(told.stdout.split()[-1]) / seconds - 1
    finally:
        subprocess.run([*gristmill, "down"], env=environ, check=False, stdout=subprocess.DEVNULL)
        shutil.rmtree(folder)

    over_running, over_embedded = statistics.median(running), statistics.median(embedded)
    trigger = statistics.median(triggers)
    report("up, existing database", f"{up:.1f} s")
    report("running server, over the steps alone", f"{over_running:.2f} s", "<= 2.5 s", over_running <= 2.5)
    report("embedded server, over the steps alone", f"{over_embedded:.2f} s", "<= 13 s", over_embedded <= 13)
    report("trigger to first task, median", f"{trigger:.2f} s", "<= 6 s", trigger <= 6)
    report("trigger to first task, slowest", f"{max(triggers):.2f} s")
    report(f"{TASKS} tasks in {seconds:.0f} s: overhead", f"{overhead:.2%}", "<= 2%", overhead <= 0.02)


if __name__ == "__main__":
    main()
