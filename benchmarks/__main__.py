"""Run every benchmark, each in a process of its own, and sum up.

    python -m benchmarks           # all of them
    python -m benchmarks writing   # some of them

The exit code is 0 even if a target is not met: machines differ, and a slow one is no fault. It is 1 if a
benchmark fails.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence

BENCHMARKS = (
    "packing",
    "corpus_selection",
    "sampling",
    "writing",
    "readers",
    "formats",
    "tokenizing",
    "memory",
    "cached",
    "startup",
    "probes",
    "probe_loader",
    "scale",
    "growth",
)


def run(name: str) -> tuple[list[str], int]:
    """Run one benchmark, passing its lines on as they come; its lines and its exit code."""
    command = [sys.executable, "-m", f"benchmarks.{name}"]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line.rstrip())
    return lines, process.returncode


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks", description="Run every benchmark, or those named.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(BENCHMARKS)}")
    names = parser.parse_args(argv).names or BENCHMARKS
    unknown = set(names).difference(BENCHMARKS)
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    crashed, missed, met = [], [], 0
    for name in names:
        print(f"\n{name}", flush=True)
        lines, code = run(name)
        crashed += [f"{name}: exit code {code}"] if code else []
        missed += [f"{name}: {line}" for line in lines if line.endswith(" not met")]
        met += sum(line.endswith(" met") and not line.endswith(" not met") for line in lines)
    print(f"\n{met} targets met, {len(missed)} not met, {len(crashed)} benchmarks failed")
    for line in (*missed, *crashed):
        print(f"  {line}")
    return 1 if crashed else 0


if __name__ == "__main__":
    sys.exit(main())
