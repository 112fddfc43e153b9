"""Where and with what a run was made. It goes into the manifest, never into a data file."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
from typing import Any

# Whatever can change output bytes, or explain a failure.
_PACKAGES = (
    "gristmill",
    "prefect",
    "numpy",
    "pyarrow",
    "duckdb",
    "tokenizers",
    "transformers",
    "jinja2",
    "orjson",
    "array-record",
    "grain",
)


def versions() -> dict[str, str]:
    """Installed versions of the packages a run depends on."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def environment() -> dict[str, Any]:
    """The machine and the moment."""
    return {
        "created_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "host": platform.node(),
        "platform": platform.platform(),
    }
