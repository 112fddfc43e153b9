"""The command `gristmill`, and the check that what Python finds as `flows`, `tasks` and `schemas` is ours.

Other projects have folders of these names too, and Python may look there first: in `PYTHONPATH`, in a script's own
folder, and in the working directory where it is started with `-m` or `-c`. What is imported then fails far from the
cause. So this module lies outside of them, under a name that is nobody else's.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

FOLDERS = ("schemas", "tasks", "flows")


def require_own(*names: str) -> None:
    """Check that Python finds our own top-level folders of these names.

    Raises:
        ImportError: naming what it finds instead, and what to do.
    """
    for name in names:
        ours = Path(__file__).resolve().parent / name / "__init__.py"
        spec = find_spec(name)
        found = spec and (spec.origin or next(iter(spec.submodule_search_locations or ()), None))
        if not found or Path(found).resolve() != ours:
            raise ImportError(
                f"{found} shadows Gristmill's own {ours.parent}. Rename it; or start `gristmill` (not "
                "`python -m flows`), your program or the worker in another directory, without it in PYTHONPATH",
                name=name,
            )


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        require_own(*FOLDERS)
    except ImportError as error:
        print(f"gristmill: [shadowed] {error}", file=sys.stderr)
        sys.exit(2)
    from flows.cli.main import entry

    sys.exit(entry())
