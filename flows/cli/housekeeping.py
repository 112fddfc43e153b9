"""Implement the commands `runs` and `prune`: list the runs of an output folder, and remove old ones."""

from __future__ import annotations

import argparse
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flows.cli.plain import print_json
from schemas.errors import ConfigError

_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def add_commands(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the two commands to a parser's commands."""
    runs = commands.add_parser("runs", parents=[common], help="list the runs of an output folder")
    runs.add_argument("path", metavar="DIR", help="the output folder")
    runs.set_defaults(run=_runs)
    prune = commands.add_parser("prune", parents=[common], help="remove old runs and unused stages")
    prune.add_argument("path", metavar="DIR", help="the output folder")
    prune.add_argument(
        "--keep", type=int, default=1, metavar="N", help="runs to keep, newest first; default 1"
    )
    prune.add_argument(
        "--min-age",
        default="7d",
        metavar="AGE",
        help="keep anything younger than this: 90m, 12h, 7d; default 7d",
    )
    prune.add_argument("--dry-run", action="store_true", help="only list what would be removed")
    prune.set_defaults(run=_prune)


def _runs(options: argparse.Namespace) -> int:
    from tasks.run.prune import damaged_runs, list_runs

    found = [
        {
            "run_hash": run.manifest.run_hash,
            "run_dir": str(run.folder),
            "published": datetime.fromtimestamp(run.published_s, UTC).isoformat(timespec="seconds"),
            "latest": run.latest,
            "rows_in": run.manifest.ledger.rows_in,
            "rows_used": run.manifest.ledger.rows_used,
            "rejected": run.manifest.ledger.rows_rejected,
            "bytes": sum(record.bytes for record in run.manifest.outputs),
        }
        for run in list_runs(Path(options.path))
    ]
    damaged = damaged_runs(Path(options.path))
    if options.json:
        print_json({"runs": found, "damaged": [folder.name for folder in damaged]})
        return 0
    from flows.cli.rendering import make_console, print_table
    from schemas.report import Column, Table

    columns = ("run", "published", "rows in", "used", "rejected", "bytes")
    rows = tuple(
        (
            f"{run['run_hash']}{' (latest)' if run['latest'] else ''}",
            str(run["published"]),
            *(f"{run[name]:,}" for name in ("rows_in", "rows_used", "rejected", "bytes")),
        )
        for run in found
    )
    heads = tuple(Column(name, number > 1) for number, name in enumerate(columns))
    print_table(make_console(), Table(f"{len(found)} runs in {options.path}", heads, rows))
    for folder, fault in damaged.items():
        print(f"damaged run {folder.name}: {fault}")
    return 0


def _prune(options: argparse.Namespace) -> int:
    from tasks.run.prune import find_unneeded, remove

    root = Path(options.path)
    unneeded = find_unneeded(root, options.keep, parse_age(options.min_age), time.time())
    if not options.dry_run:
        remove(root, unneeded)
    if options.json:
        print_json(
            {
                "runs": [folder.name for folder in unneeded.runs],
                "stages": [folder.name for folder in unneeded.stages],
                "damaged": [folder.name for folder in unneeded.damaged],
                "freed_bytes": unneeded.freed_bytes,
                "dry_run": options.dry_run,
            }
        )
        return 0
    done = "would remove" if options.dry_run else "removed"
    for kind, folders in (("run", unneeded.runs), ("stage", unneeded.stages)):
        for folder in folders:
            print(f"{done} {kind} {folder.name}")
    for folder, fault in unneeded.damaged.items():
        print(
            f"kept run {folder.name}, which is damaged, and all stages: repair it by running its configuration "
            f"again, or remove its folder ({fault})"
        )
    print(
        f"{done} {len(unneeded.runs)} runs and {len(unneeded.stages)} stages, {unneeded.freed_bytes:,} bytes"
    )
    return 0


def parse_age(text: str) -> int:
    """Convert an age to seconds.

    Raises:
        ConfigError: the text is not a number with a unit.

    >>> parse_age("90m"), parse_age("7d"), parse_age("0s")
    (5400, 604800, 0)
    """
    match = re.fullmatch(r"(\d+)([smhdw])", text)
    if match is None:
        raise ConfigError(
            f"{text!r} is not a valid age; write a number followed by s, m, h, d or w, for example 7d",
            code="usage",
            where="--min-age",
        )
    return int(match[1]) * _UNITS_S[match[2]]
