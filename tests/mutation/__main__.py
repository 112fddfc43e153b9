"""`make mutants`: are there tests that notice? Small faults are put into the code, one at a time.

A module's tests run for each fault, in a copy of the checkout. A failure, or no end within five times their
usual time, kills the mutant; a mutant that survives shows a line that no test looks at. Sampled by a fixed
seed, so that two runs tell the same. Ends with 1 where less than nine in ten are killed.

We wrote this because the known tools miss what matters here: mutmut 3 changes functions only, so no
`_WASTE_DIVISOR = 2_000`; cosmic-ray changes the `|` of annotations too (55 of the mutants of `drift.py`, none
of which anything can notice), draws no sample, and writes into the working tree.
"""

from __future__ import annotations

import argparse
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path

from mutator import Mutant, mutants
from targets import EQUIVALENT, TARGETS

ROOT = Path(__file__).resolve().parents[2]
ENOUGH = 0.9
# A file's time is in whole seconds in Python's cache of bytecode: each change of a file gets a time of its own.
_times = count(int(time.time()))


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--module", choices=TARGETS, help="only this one")
    parser.add_argument("--sample", type=int, default=40, help="mutants of each module; 0: all (default 40)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (default 0)")
    parser.add_argument("--match", default="", help="only mutants whose file or line holds this text")
    parser.add_argument("--processes", type=int, default=2, help="how many run at once (default 2)")
    options = parser.parse_args()
    chosen = {options.module: TARGETS[options.module]} if options.module else TARGETS
    table, survivors = [], []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies = [_copy(Path(folder) / str(number)) for number in range(options.processes)]
        for name, target in chosen.items():
            faults, equivalent = _faults(target)
            faults = [fault for fault in faults if options.match in f"{fault[0]}: {fault[1].before}"]
            if 0 < options.sample < len(faults):
                faults = random.Random(options.seed).sample(faults, options.sample)
            ends = _try_all(name, target, faults, copies)
            survivors += [
                (name, *fault) for fault, end in zip(faults, ends, strict=True) if end == "survived"
            ]
            table.append((name, len(ends), ends.count("timeout"), ends.count("survived"), equivalent))
    for name, path, mutant in survivors:
        print(f"\nsurvived in {name}: {path}:{mutant.line}\n- {mutant.before}\n+ {mutant.after}")
    print("\nmodule      tried  killed  of these by time  survived       %  equivalent")
    for name, tried, late, alive, equivalent in table:
        share = (tried - alive) / max(tried, 1)
        print(f"{name:10} {tried:6} {tried - alive:7} {late:17} {alive:9} {share:7.1%} {equivalent:11}")
    return int(any(tried - alive < ENOUGH * tried for _, tried, _, alive, _ in table))


def _faults(paths: Iterable[str]) -> tuple[list[tuple[str, Mutant]], int]:
    """The faults of these files, and how many more are known to change nothing."""
    found, skipped = [], 0
    for path in paths:
        known = EQUIVALENT.get(path, {})
        used = set()
        for mutant in mutants((ROOT / path).read_text()):
            entries = {(mutant.before, mutant.after), (mutant.before, "*")} & known.keys()
            used |= entries
            skipped += bool(entries)
            if not entries:
                found.append((path, mutant))
        if known.keys() - used:
            stale = "\n".join(f"- {before}\n+ {after}" for before, after in known.keys() - used)
            raise SystemExit(f"EQUIVALENT in tests/mutation/targets.py: no such mutant of {path}:\n{stale}")
    return found, skipped


def _copy(folder: Path) -> Path:
    """The checkout as it is, changes included, without what git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def _try_all(
    name: str, tests: dict[str, tuple[str, ...]], faults: list[tuple[str, Mutant]], copies: list[Path]
) -> list[str]:
    """How the tests end with each fault: `killed`, `timeout` or `survived`."""
    whole, timeouts = {}, {}
    for path in {path for path, _ in faults}:
        whole[path] = (copies[0] / path).read_text()
        started = time.monotonic()
        if _run_tests(copies[0], (path, *tests[path]), 600) != "survived":
            raise SystemExit(f"these tests fail without any fault: {path} {' '.join(tests[path])}")
        timeouts[path] = 30 + 5 * (time.monotonic() - started)
    free: queue.Queue[Path] = queue.Queue()
    for copy in copies:
        free.put(copy)
    done = count(1)

    def attempt(fault: tuple[str, Mutant]) -> str:
        path, mutant = fault
        copy = free.get()
        try:
            _write(copy / path, mutant.source)
            outcome = _run_tests(copy, (path, *tests[path]), timeouts[path])
            _write(copy / path, whole[path])
        finally:
            free.put(copy)
        print(f"{name} {next(done)}/{len(faults)} {outcome}: {mutant.after}", file=sys.stderr, flush=True)
        return outcome

    with ThreadPoolExecutor(len(copies)) as pool:
        return list(pool.map(attempt, faults))


def _write(path: Path, source: str) -> None:
    path.write_text(source)
    moment = next(_times)
    os.utime(path, (moment, moment))


def _run_tests(copy: Path, files: tuple[str, ...], timeout: float) -> str:
    """The tests of these files, and the examples in them; the first failure ends the run."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "--basetemp",
        f"{copy}.tmp",
    ]
    process = subprocess.Popen(
        [*command, *files],
        cwd=copy, env={**os.environ, "PYTHONPATH": str(copy)}, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        code = process.wait(timeout)
    except subprocess.TimeoutExpired:
        return "timeout"
    finally:
        # Also what the tests started.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return "killed" if code else "survived"


if __name__ == "__main__":
    sys.exit(main())
