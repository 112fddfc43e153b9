"""How a run of very many parts and shards treats its driver: memory, time a part, a re-run.

    python -m benchmarks.scale                             # 2,000 parts, 200 shards: two minutes
    python -m benchmarks.scale --parts 20000 --shards 2000 # half an hour

Everything is real but the size of what a part holds: `pack-sft` on Prefect, in worker processes, over files of a few
short conversations. Each file is made a part of its own, which the rule for parts would only do for large files.
The driver is measured alone; its workers are processes of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import peak_megabytes, report

ROWS_A_PART, TOKENS_A_ROW = 4, 20
SIZE = 64
TOKENIZER = Path(__file__).resolve().parents[1] / "tests" / "fixtures" / "tokenizer"
TARGET_MB, TARGET_MANIFEST_S = 1024, 0.1


def write_source(folder: Path, parts: int) -> None:
    """A file of a few short conversations for each part."""
    folder.mkdir()
    for part in range(parts):
        rows = (
            {
                "messages": [
                    {"role": "user", "content": f"{part} + {row}?"},
                    {"role": "assistant", "content": str(part + row)},
                ]
            }
            for row in range(ROWS_A_PART)
        )
        (folder / f"{part:06d}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def config_of(folder: Path, parts: int, shards: int, **changes: Any) -> dict[str, Any]:
    return {
        "output_dir": str(folder / "out"),
        "datasets": [{"name": "chats", "path": str(folder / "in")}],
        "tokenizer": {"path": str(TOKENIZER)},
        "pack": {"size": SIZE},
        "storage": {"shard_tokens": max(SIZE, parts * ROWS_A_PART * TOKENS_A_ROW // shards)},
        "splits": {"train": 1.0, "valid": 0.0, "test": 0.0},
        "workers": 2,
        **changes,
    }


def drive(raw: dict[str, Any], runner: str, every_file: bool) -> dict[str, Any]:
    """Run pack-sft in this process, the driver; how long, how much memory, and what it made."""
    from tasks.runtime.settings import quiet_environment

    quiet_environment()
    from flows.cli.registry import FLOWS, run_or_find
    from tasks.run.receipts import Verify
    from tasks.runtime import progress

    if every_file:
        from tasks.inputs.segments import parts_of
        from tasks.sft import stages

        stages.parts_of = partial(parts_of, group_bytes=1)  # type: ignore[assignment]
    stages_seen: dict[str, list[float]] = {}

    class Clock:
        """Seconds of each step: on the clock, and of this process on the processor."""

        def started(self, stage: str, total: int) -> None:
            stages_seen[stage] = [total, 0, -time.process_time()]

        def advanced(self, stage: str, done: int, reused: int) -> None:
            pass

        def ended(self, stage: str, done: int, reused: int, seconds: float) -> None:
            stages_seen[stage][1] = seconds
            stages_seen[stage][2] += time.process_time()

    entry = next(entry for entry in FLOWS if entry.name == "pack-sft")
    started = time.perf_counter()
    with progress.watching(Clock()):
        summary = run_or_find(entry, entry.parse(raw), runner, Verify.SIZE, force=False)
    return {
        "seconds": time.perf_counter() - started,
        "cpu": time.process_time(),
        "megabytes": peak_megabytes(),
        "cached": summary.cached,
        "steps": stages_seen,
        "outputs": len(summary.manifest.outputs),
        "run": summary.run_dir,
    }


def driven(raw: dict[str, Any], runner: str, every_file: bool) -> dict[str, Any]:
    """`drive` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.scale", "--drive", json.dumps([raw, runner, every_file])]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def manifest_seconds(run: Path) -> float:
    from tasks.run.manifest import read_manifest

    times = []
    for _ in range(5):
        # On the processor: a busy machine says nothing of the manifest.
        started = time.process_time()
        read_manifest(run)
        times.append(time.process_time() - started)
    return min(times)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", type=int, default=2_000)
    parser.add_argument("--shards", type=int, default=200)
    parser.add_argument("--runner", default="processes")
    parser.add_argument("--folder", help="where the files go, and stay; by default a temporary folder")
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.drive:
        print(json.dumps(drive(*json.loads(arguments.drive))))
        return
    folder = Path(arguments.folder or tempfile.mkdtemp(prefix="gristmill-bench-"))
    parts, shards = arguments.parts, arguments.shards
    try:
        folder.mkdir(exist_ok=True)
        if not (folder / "in").exists():
            write_source(folder / "in", parts)
        raw = config_of(folder, parts, shards)
        first = driven(raw, arguments.runner, True)
        again = driven(raw, arguments.runner, True)
        # A new size of shards packs again, and finds all spools.
        other = driven({**raw, "seed": 1}, arguments.runner, True)
        manifest_s = manifest_seconds(Path(first["run"]))
    finally:
        if not arguments.folder:
            shutil.rmtree(folder)
    peak = max(first["megabytes"], other["megabytes"])
    report("parts", f"{parts:,}")
    report("outputs", f"{first['outputs']:,}")
    report("driver memory", f"{peak:.0f} MB", f"<= {TARGET_MB} MB", peak <= TARGET_MB)
    for name, run in (("first run", first), ("with another seed", other)):
        report(f"{name}, wall", f"{run['seconds']:.1f} s")
        report(f"{name}, driver", f"{run['cpu']:.1f} s")
        for step, (total, seconds, cpu) in run["steps"].items():
            figures = f"{1e3 * cpu / max(total, 1):.2f} ms"
            report(f"{name}, {step}: {total:,.0f} in {seconds:.1f} s, driver a part", figures)
    report("cached re-run", f"{again['seconds']:.2f} s" if again["cached"] else "not cached")
    report(
        "manifest",
        f"{1e3 * manifest_s:.0f} ms",
        f"<= {1e3 * TARGET_MANIFEST_S:.0f} ms",
        manifest_s <= TARGET_MANIFEST_S,
    )


if __name__ == "__main__":
    main()
