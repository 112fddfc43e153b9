"""How time and memory of each flow grow with its input, at three sizes: x1, x4, x16.

    python -m benchmarks.growth              # a quarter of an hour, 6 GB in the folder for temporary files
    python -m benchmarks.growth pack-sft     # one flow

Every run is the command as a user types it, with two worker processes; its server is not counted. Time is that of
all its processes on the processor. An exponent is fitted from x4 to x16: 1 is in proportion, 0 is no growth.
docs/scaling.md computes with these figures.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import deepseek_folder, report
from benchmarks.memory import write_rows
from benchmarks.probes import make_set
from benchmarks.sampling import BUCKETS, DATASET, FILES, make_corpus
from benchmarks.tokenizing import TEMPLATES

SIZES = (1, 4, 16)
CONVERSATIONS, MEASUREMENTS = 15_000, 1_000_000
MOST_TIME, MOST_MEMORY = 1.05, 0.3
_LOOK_S = 0.05


class Run(NamedTuple):
    """What a run took: seconds on the clock and on the processor, MB of its driver and of its largest worker."""

    wall: float
    cpu: float
    driver: float
    worker: float


def pack_sft(folder: Path, times: int) -> dict[str, Any]:
    source = folder / "chats.jsonl"
    write_rows(source, CONVERSATIONS * times)
    template = folder / "template.jinja"
    template.write_text(TEMPLATES["generation blocks"])
    return {
        "datasets": [{"name": "chats", "path": str(source)}],
        "tokenizer": {"path": str(deepseek_folder()), "chat_template": str(template)},
    }


def sample_corpus(folder: Path, times: int) -> dict[str, Any]:
    corpus = folder / "corpus"
    whole = folder.parent / "documents"
    if not whole.exists():
        make_corpus(whole)
    for bucket in BUCKETS:
        (corpus / bucket).mkdir(parents=True)
        files = sorted((whole / bucket).iterdir())
        for number in range(FILES * times // 4):
            # The same documents under other names are other rows.
            os.link(files[number % FILES], corpus / bucket / f"part-{number:05d}.parquet")
    buckets = {bucket: {"count": 20_000 * times} for bucket in BUCKETS}
    return {"datasets": {DATASET: {"name": DATASET, "source": str(corpus), "buckets": buckets}}}


def build_probe_rows(folder: Path, times: int) -> dict[str, Any]:
    make_set(folder / "measurements", MEASUREMENTS * times, 4_000 * times)
    return {"input": str(folder / "measurements")}


FLOWS: dict[str, Callable[[Path, int], dict[str, Any]]] = {
    "pack-sft": pack_sft,
    "sample-corpus": sample_corpus,
    "build-probe-rows": build_probe_rows,
}


def timed(flow: str, config: dict[str, Any], folder: Path) -> Run:
    """Run the command; look at its processes while it runs."""
    path = folder / "config.json"
    path.write_text(json.dumps({**config, "output_dir": str(folder / "out"), "workers": 2}))
    command = [sys.executable, "-m", "flows", flow, str(path), "--runner", "processes", "--json"]
    started = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    peaks: dict[int, float] = {}
    ended = threading.Event()
    looking = threading.Thread(target=_look, args=(process.pid, peaks, ended))
    looking.start()
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - started
    ended.set()
    looking.join()
    if process.returncode:
        raise RuntimeError(f"{flow} failed: {said.decode()[-2000:]}")
    driver = peaks.pop(process.pid)
    return Run(wall, usage.ru_utime + usage.ru_stime, driver, max(peaks.values(), default=0.0))


def _look(group: int, peaks: dict[int, float], ended: threading.Event) -> None:
    """Note the peak memory of every process of a group, in MB."""
    while not ended.wait(_LOOK_S):
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError, StopIteration):
                if os.getpgid(int(entry.name)) == group:
                    lines = (entry / "status").read_text().splitlines()
                    peak = next(line for line in lines if line.startswith("VmHWM:"))
                    peaks[int(entry.name)] = int(peak.split()[1]) / 1024


def measure(flow: str, folder: Path) -> None:
    runs = []
    for times in SIZES:
        room = folder / f"{flow}-{times}"
        room.mkdir()
        runs.append(run := timed(flow, FLOWS[flow](room, times), room))
        shutil.rmtree(room)
        report(f"{flow} x{times}", f"{run.wall:.1f} s", f"{run.cpu:.1f} s cpu")
        report(f"{flow} x{times}: driver, largest worker", f"{run.driver:.0f} MB", f"{run.worker:.0f} MB")
    _, middle, large = runs
    step = math.log(SIZES[2] / SIZES[1])
    growth = math.log(large.cpu / middle.cpu) / step
    report(f"{flow}: exponent of time", f"{growth:.2f}", f"<= {MOST_TIME}", growth <= MOST_TIME)
    memory = math.log(large.driver / middle.driver) / step
    report(f"{flow}: exponent of driver memory", f"{memory:.2f}", f"<= {MOST_MEMORY}", memory <= MOST_MEMORY)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("flows", nargs="*", metavar="FLOW", help="all by default")
    chosen = parser.parse_args().flows or list(FLOWS)
    if unknown := set(chosen) - set(FLOWS):
        parser.error(f"no flow {', '.join(sorted(unknown))}; there are {', '.join(FLOWS)}")
    folder = Path(tempfile.mkdtemp(prefix="gristmill-bench-"))
    try:
        for flow in chosen:
            measure(flow, folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
