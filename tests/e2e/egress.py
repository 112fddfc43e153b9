"""A record of every connection a Python process tries to make beyond this computer.

Python starts with `sitecustomize` from the path, so a hook is in place in the server, the worker and each run before
any of their code. It sees what the interpreter's sockets are asked to do, whatever comes of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_HOOKS = Path(__file__).resolve().parent / "hooks"
LOG_VARIABLE = "GRISTMILL_TEST_CONNECTIONS"


def recording_environment(log: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """What to add to the environment of a process to have its connections, and its children's, recorded."""
    log.touch()
    path = os.pathsep.join(filter(None, [str(_HOOKS), environ.get("PYTHONPATH")]))
    return {LOG_VARIABLE: str(log), "PYTHONPATH": path}


def recorded(log: Path) -> list[str]:
    return log.read_text().splitlines()
