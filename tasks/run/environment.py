"""Record the machine and the package versions of a run, for the manifest; never for a data file."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
from typing import Any

# Every package that can change output bytes, or explain a failure.
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
    """Return the installed versions of the packages a run depends on."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def environment() -> dict[str, Any]:
    """Describe the machine and the time of the run."""
    return {
        "created_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "host": platform.node(),
        "platform": platform.platform(),
    }
