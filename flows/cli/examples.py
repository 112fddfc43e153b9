"""Implement the command `example`, which prints a complete, commented configuration to start from."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from flows.cli.plain import print_json
from flows.cli.registry import FLOWS
from schemas.errors import StorageError
from tasks.storage.reading import read_text

FOLDER = Path(__file__).resolve().parents[2] / "deployments"


def add_commands(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to a parser's commands."""
    example = commands.add_parser(
        "example", parents=[common], help="print an example configuration of a flow"
    )
    example.add_argument(
        "flow", metavar="FLOW", choices=[entry.name for entry in FLOWS], help="name of the flow"
    )
    example.set_defaults(run=_example)


def _example(options: argparse.Namespace) -> int:
    [module] = [entry.module for entry in FLOWS if entry.name == options.flow]
    path = FOLDER / f"{module}.yaml"
    try:
        text = read_text(path)
    except OSError as error:
        raise StorageError(f"cannot read the example: {error.strerror}", where=str(path)) from error
    if options.json:
        print_json({"flow": options.flow, "example": text})
    else:
        print(text.rstrip("\n"))
    return 0
