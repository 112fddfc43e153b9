"""The commands that programs print, written so that they work where they are printed.

`gristmill` alone is found only where its environment is activated. `make demo` activates none, and a checkout that
is not installed has no such command: there, what is printed begins with something that runs.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from shutil import which

NAME = "gristmill"


def command_line(*arguments: object) -> str:
    """A command of ours, to be pasted into the shell that this process was started from."""
    return " ".join([this_command(), *(shlex.quote(str(argument)) for argument in arguments)])


def this_command() -> str:
    """How to call this installation from the working directory: `gristmill`, its path, or `python -m flows`."""
    called, python = Path(sys.argv[0]), Path(sys.executable)
    script = called if called.name == NAME else python.parent / NAME
    if os.access(script, os.X_OK) and script.is_file():
        return _typed(script)
    return f"{_typed(python.with_name('python') if python.with_name('python').exists() else python)} -m flows"


def _typed(program: Path) -> str:
    """A program as one would type it: its name if that is enough, else its path, relative if it lies below."""
    found = which(program.name)
    # Folders are compared, not files: the interpreters of all virtual environments are links to one.
    if found is not None and Path(found).parent.resolve() == program.parent.resolve():
        return program.name
    path = (
        Path(os.path.relpath(program))
        if program.absolute().is_relative_to(Path.cwd())
        else program.absolute()
    )
    return shlex.quote(str(path) if path.parent.name or path.is_absolute() else f"./{path}")
