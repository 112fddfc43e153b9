"""`python -m flows`, and the console script `gristmill`."""

from __future__ import annotations

import sys

from flows.cli.main import entry


def main() -> None:
    """Run the command line and exit with its code."""
    sys.exit(entry())


if __name__ == "__main__":
    main()
