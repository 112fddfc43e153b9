"""`python -m flows`: the command `gristmill` where it is not installed."""

from __future__ import annotations

from gristmill_command import main

if __name__ == "__main__":
    main()
