"""Write the commands that programs print so that they work where they are printed.

The shell finds `gristmill` only where its environment is activated. `make demo` does not activate one, and a checkout
that is not installed has no such command: there, the printed command starts with something that runs.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from shutil import which

NAME = "gristmill"


def command_line(*arguments: object) -> str:
    """Return a command of ours, ready to paste into the shell that started this process."""
    return " ".join([this_command(), *(shlex.quote(str(argument)) for argument in arguments)])


def this_command() -> str:
    """Return how to call this installation from the working directory.

    It is `gristmill`, its path, or `python -m flows`.
    """
    called, python = Path(sys.argv[0]), Path(sys.executable)
    script = called if called.name == NAME else python.parent / NAME
    if os.access(script, os.X_OK) and script.is_file():
        return _typed(script)
    return f"{_typed(python.with_name('python') if python.with_name('python').exists() else python)} -m flows"


def _typed(program: Path) -> str:
    """Return a program as one would type it: its name if the shell finds it, else its path, relative if possible."""
    found = which(program.name)
    # Compare folders, not files: the interpreters of all virtual environments are links to the same file.
    if found is not None and Path(found).parent.resolve() == program.parent.resolve():
        return program.name
    path = (
        Path(os.path.relpath(program))
        if program.absolute().is_relative_to(Path.cwd())
        else program.absolute()
    )
    return shlex.quote(str(path) if path.parent.name or path.is_absolute() else f"./{path}")
