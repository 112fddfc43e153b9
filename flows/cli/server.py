"""Implement `gristmill up`, `status` and `down`, which control the local server."""

from __future__ import annotations

import argparse
import logging
from typing import TYPE_CHECKING, Any

from flows.cli.invocation import this_command
from flows.cli.plain import print_json
from schemas.errors import ConfigError, WorkError

if TYPE_CHECKING:
    from tasks.server.control import Status

log = logging.getLogger("gristmill")

NOT_RUNNING = 1


def add_commands(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the three commands to a parser's commands."""
    up = commands.add_parser(
        "up", parents=[common], help="start a local Prefect server with its UI, a worker and the deployments"
    )
    up.add_argument(
        "--port", type=int, metavar="N", help="port for a new server; default: 4200, or any free port"
    )
    up.set_defaults(run=_up)
    seen = commands.add_parser(
        "status", parents=[common], help="print what is running; exit code 1 if a part is down"
    )
    seen.add_argument(
        "--env",
        action="store_true",
        help="print the shell commands that let Prefect's own programs use the server; they contain its token",
    )
    seen.set_defaults(run=_status)
    down = commands.add_parser("down", parents=[common], help="stop the server; its database is kept")
    down.set_defaults(run=_down)


def _up(options: argparse.Namespace) -> int:
    from tasks.server.control import up
    from tasks.server.state import State

    return _report(up(State.of_user(), options.port, log.info), options.json)


def _status(options: argparse.Namespace) -> int:
    from tasks.server.control import status
    from tasks.server.state import State

    if not options.env:
        return _report(status(State.of_user()), options.json)
    if options.json:
        raise ConfigError(
            "--env prints shell commands, which --json cannot hold; give one of them", code="usage"
        )
    exports = status(State.of_user()).exports()
    if exports is None:
        raise WorkError(f"no server is running; start it with: {this_command()} up", code="no_server")
    print("\n".join(exports))
    return 0


def _down(options: argparse.Namespace) -> int:
    from tasks.server.control import down
    from tasks.server.state import State

    ended = down(State.of_user())
    if options.json:
        print_json({"ended": ended})
    else:
        print(f"stopped {ended} processes" if ended else "nothing was running")
    return 0


def _report(status: Status, as_json: bool) -> int:
    if as_json:
        print_json(status.as_dict())
    else:
        print("\n".join(status.lines(this_command())))
    return 0 if status.ok else NOT_RUNNING
