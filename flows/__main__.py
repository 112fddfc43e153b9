"""Run the command `gristmill` as `python -m flows`, where it is not installed."""

from __future__ import annotations

from gristmill_command import main

if __name__ == "__main__":
    main()
