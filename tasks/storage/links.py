"""Refuse symbolic links inside an output folder, so that nothing is written or removed outside it.

An output folder may be shared. Whoever can write to it could replace `runs/{run_hash}` by a link, and what is written
or removed "there" would be somebody else's. So a path is checked before anything is created or removed at it: from
`runs` or `stages` on it must be free of links. What comes before is the user's own: the output folder itself may be
reached through links.

The check costs one `lstat` a level. It does not stop somebody who swaps a folder for a link between the check and the
use: an account that is not trusted must not be able to write to the folder.
"""

from __future__ import annotations

import os
from pathlib import Path

from schemas.errors import ConfigError

# The layout that `tasks.run.layout` describes.
MARKER = ".gristmill.json"
RUNS = "runs"
STAGES = "stages"


def refuse_links(path: Path) -> None:
    """Check that no part of a path, from `runs` or `stages` of an output folder on, is a symbolic link.

    Paths outside output folders are not checked. An output folder is one with a marker; of nested ones the outermost
    counts, so that a link cannot hide behind a marker at its target.

    Raises:
        ConfigError: `foreign_output`, with the link.
    """
    # Texts: this runs for every file, and joining paths took more time than the checks.
    parts = str(path).split("/")
    for place, part in enumerate(parts):
        if part in (RUNS, STAGES) and os.path.lexists("/".join([*parts[:place], MARKER])):
            here = "/".join(parts[: place + 1])
            refuse_link(here)
            for below in parts[place + 1 :]:
                here = f"{here}/{below}"
                refuse_link(here)
            return


def refuse_link(path: str | Path) -> None:
    """Check that a path of ours is not a symbolic link itself.

    Raises:
        ConfigError: `foreign_output`.
    """
    if os.path.islink(path):  # noqa: PTH114 - `path` may be a string
        raise ConfigError(
            f"this is a symbolic link to {os.readlink(path)!r}, and links inside an output folder are not followed; "  # noqa: PTH115
            "remove it, then run again (to keep output on another disk, link or mount the whole output folder)",
            code="foreign_output",
            where=str(path),
        )
