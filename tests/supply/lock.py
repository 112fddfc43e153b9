"""Reads requirements.lock: the packages the checks run with, each with its version and the digests of its files."""

from __future__ import annotations

from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements.lock"


def entries() -> list[tuple[Requirement, list[str]]]:
    """Every entry as its requirement and its digests (`sha256:…`)."""
    logical = LOCK.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    found = []
    for line in logical:
        if line.strip() and not line.startswith("#"):
            requirement, *digests = line.split("--hash=")
            found.append((Requirement(requirement.strip()), [digest.strip() for digest in digests]))
    return found


def requirements() -> list[Requirement]:
    """Every entry without its digests."""
    return [requirement for requirement, _ in entries()]
