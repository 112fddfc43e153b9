"""`make torture`: does anything break a run? Kills, faults, damage and hostile input, by a seed, for so many minutes.

    PYTHONPATH=tests python -m torture --seed 1 --minutes 60
    PYTHONPATH=tests python -m torture --seed 1 --only kills --number 17     # one try again

Each try is a process with a room of its own (room.py), whose randomness follows from the seed, its kind and its
number. What it may do: end well, or end with a coded error; anything else is a failed rule. A row or a byte lost, a
traceback, a command that hangs or takes too much memory, a success that is none, an orphan, a temporary file that
nothing removes, a link that is followed. Ends with a table, and with 1 if a rule failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import torture.quiet
import transformers
from torture import damages, drivers, faults, files, fuzzed, kills
from torture.kit import Kit, make_kit
from torture.room import Room, adopt, judging
from workloads import command, environment

import flows.build_probe_rows
import flows.pack_sft
import flows.sample_corpus
import flows.train_tokenizer
import tasks.sft.chat.tokenizer

# Some are imported only when they are asked for.
assert (
    torture.quiet
    and transformers.AutoTokenizer
    and tasks.sft.chat.tokenizer.load_tokenizer
    and flows.pack_sft.mill
)

# With its share of the time.
KINDS = {
    "kills": (kills, 0.34),
    "faults": (faults, 0.14),
    "damages": (damages, 0.18),
    "drivers": (drivers, 0.08),
    "crafted": (files, 0.16),
    "fuzzed": (fuzzed, 0.10),
}
TRY_S = 400.0
AT_ONCE = 2


def main() -> int:
    parser = argparse.ArgumentParser(prog="make torture", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="of all that is tried (default 0)")
    parser.add_argument("--minutes", type=float, default=60, help="time to spend on tries (default 60)")
    parser.add_argument("--only", default="", metavar="KIND,…", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--tries", type=int, metavar="N", help="at most so many of each kind")
    parser.add_argument(
        "--number", type=int, metavar="N", help="this one try of the kind; its folder is kept"
    )
    parser.add_argument(
        "--no-server", action="store_true", help="leave out what needs a running Prefect server"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write what became of every try")
    options = parser.parse_args()
    chosen = [name for name in KINDS if name in (options.only or ",".join(KINDS)).split(",")]
    if not chosen or (options.number is not None and len(chosen) != 1):
        parser.error(f"--only takes {', '.join(KINDS)}; --number takes one of them")
    folder = Path(tempfile.mkdtemp(prefix="torture-")).resolve()
    server = None if options.no_server else folder / "server"
    try:
        if server is not None:
            _gristmill(server, "up")
        kit = make_kit(folder, server)
        results = _campaign(kit, chosen, options)
    finally:
        if server is not None:
            _gristmill(server, "down")
        if options.number is None:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"kept: {folder}")
    if options.json is not None:
        options.json.write_text(json.dumps({"seed": options.seed, "tries": results}, indent=1))
    return _report(results, options.seed)


def _gristmill(state: Path, *arguments: str) -> None:
    subprocess.run(
        command(*arguments, "--json"), env=environment(GRISTMILL_STATE_DIR=str(state)),
        check=True, stdout=subprocess.DEVNULL, timeout=300,
    )  # fmt: skip


def _campaign(kit: Kit, chosen: list[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Start tries, two at a time, of the kind that has had the least of its share, until the time is over."""
    results: list[dict[str, Any]] = []
    spent: dict[str, float] = dict.fromkeys(chosen, 0.0)
    begun: Counter[str] = Counter()
    limit = 1 if options.number is not None else options.tries
    running: dict[int, tuple[Room, float]] = {}
    end = time.monotonic() + 60 * options.minutes
    while True:
        open_kinds = [kind for kind in chosen if limit is None or begun[kind] < limit]
        if open_kinds and len(running) < AT_ONCE and time.monotonic() < end:
            kind = min(open_kinds, key=lambda kind: spent[kind] / KINDS[kind][1])
            number = begun[kind] if options.number is None else options.number
            begun[kind] += 1
            spent[kind] += 0.01
            room = Room(
                kit, kind, number, Random(f"{options.seed} {kind} {number}"), kit.folder / f"{kind}-{number}"
            )
            running[_begin(room)] = (room, time.monotonic())
        elif not running:
            return results
        for pid, (room, started) in list(running.items()):
            found, _ = os.waitpid(pid, os.WNOHANG)
            late = time.monotonic() - started > TRY_S
            if not found and late:
                _end(pid)
            if found or late:
                del running[pid]
                spent[room.kind] += time.monotonic() - started
                results.append(_result(room, late))
                if options.number is None:
                    shutil.rmtree(room.folder, ignore_errors=True)
        time.sleep(0.01)


def _begin(room: Room) -> int:
    """A try, in a fork."""
    room.folder.mkdir()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        adopt()
        with judging(room) as found:
            KINDS[room.kind][0].attempt(room)
        (room.folder / "result.json").write_text(json.dumps(found))
        code = 0
    finally:
        os._exit(code)


def _end(pid: int) -> None:
    import psutil

    with suppress(psutil.NoSuchProcess, ProcessLookupError):
        for process in psutil.Process(pid).children(recursive=True):
            process.kill()
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _result(room: Room, late: bool) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        result: dict[str, Any] = json.loads((room.folder / "result.json").read_bytes())
        if result["rule"]:
            print(f"FAILED {room.kind} {room.number} {result['what']}: {result['rule']}: {result['detail']}",
                  file=sys.stderr, flush=True)  # fmt: skip
        return result
    found = {"rule": "hang", "detail": "the try itself did not end", "slowest_s": TRY_S}
    if not late:
        found = {"rule": "campaign", "detail": "the try itself died", "slowest_s": 0.0}
    place = {"kind": room.kind, "number": room.number, "what": "?"}
    return {**found, **place, "done": 0, "peak_bytes": 0, "notes": []}


def _report(results: list[dict[str, Any]], seed: int) -> int:
    """Print the table, and each failure with the command that repeats it."""
    failures = [one for one in results if one["rule"]]
    for one in failures:
        print(f"\nFAILED {one['rule']}: {one['kind']}: {one['what']}\n  {one['detail']}")
        print(
            f"  again: PYTHONPATH=tests python -m torture --seed {seed} --only {one['kind']} --number {one['number']}"
        )
    rows = defaultdict(list)
    for one in results:
        rows[one["kind"], one["what"]].append(one)
    for kind in {one["kind"]: None for one in results}:
        rows[kind, "all"] = [one for one in results if one["kind"] == kind]
    width = max([len(what) for _, what in rows] or [0])
    print(f"\n{'kind':8} {'what':{width}} {'tries':>6} {'counted':>8} {'slowest':>8} {'memory':>8}  failed")
    for (kind, what), some in sorted(
        rows.items(), key=lambda row: (row[0][0], row[0][1] == "all", row[0][1])
    ):
        counts = Counter(one["rule"] for one in some if one["rule"])
        failed = ", ".join(f"{count} {rule}" for rule, count in counts.most_common()) or "0"
        slowest, peak = max(one["slowest_s"] for one in some), max(one["peak_bytes"] for one in some) >> 20
        counted = sum(one["done"] for one in some)
        line = f"{kind:8} {what:{width}} {len(some):6} {counted:8,} {slowest:6.1f} s {peak:5} MB  {failed}"
        print(line)
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
