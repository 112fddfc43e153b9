"""Start the command `gristmill` after checking that `flows`, `tasks` and `schemas` are our own packages.

Other projects have folders of these names too, and Python may find those first: in `PYTHONPATH`, in a script's own
folder, or in the working directory when it is started with `-m` or `-c`. The import then fails far from the
cause. So this module is outside of them, under a name that nothing else uses.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

FOLDERS = ("schemas", "tasks", "flows")


def require_own(*names: str) -> None:
    """Check that Python finds our own top-level packages of these names.

    Raises:
        ImportError: another one is found first; the message names it and the remedy.
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
