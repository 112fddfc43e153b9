"""Writes docs/licences.md: `make licences`.

Which packages an installation of `gristmill[sft,probes]` brings, and under which licence, as their own metadata say.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PAGE = Path(__file__).parents[2] / "docs" / "licences.md"
EXTRAS = ("sft", "probes")
_HEAD = """\
# Licences

Gristmill is under the MIT licence. An installation of `gristmill[sft,probes]` brings the packages below; the licences
are those that the packages' own metadata state. `torch` (BSD-3-Clause) is optional and not in the list. "Used by
Gristmill" are those that its code calls; the others come with them. `make licences` writes this page anew.

| package | licence | |
| --- | --- | --- |
"""
# Old spellings of `License`, and classifiers, as SPDX identifiers.
_SPDX = {
    "apache": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache-2.0 license": "Apache-2.0",
    "apache license": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "apache software license 2.0": "Apache-2.0",
    "apache2": "Apache-2.0",
    "3-clause bsd license": "BSD-3-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "bsd license": "BSD",  # which of them is not said
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
}
# Its metadata name several without saying that they are alternatives; its readme does.
_STATED_ELSEWHERE = {"text-unidecode": "Artistic-1.0-Perl OR GPL-2.0-or-later"}


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(Path.cwd()) if PAGE.is_relative_to(Path.cwd()) else PAGE}")
    return 0


def page() -> str:
    """The page for the packages that are installed here."""
    direct = {canonicalize_name(r.name) for r in declared("gristmill", EXTRAS)}
    names = sorted(installed_with("gristmill", EXTRAS) - {"gristmill"})
    rows = (
        f"| {name} | {licence(name)} | {'used by Gristmill' if name in direct else ''} |\n" for name in names
    )
    return _HEAD + "".join(rows)


def installed_with(package: str, extras: tuple[str, ...]) -> set[str]:
    """The package and all that its installation brings on this Python and platform, by canonical names."""
    found: set[tuple[str, tuple[str, ...]]] = set()
    waiting = [(canonicalize_name(package), extras)]
    while waiting:
        name, chosen = waiting.pop()
        if (name, chosen) not in found:
            found.add((name, chosen))
            waiting += [(canonicalize_name(r.name), tuple(sorted(r.extras))) for r in declared(name, chosen)]
    return {name for name, _ in found}


def declared(package: str, extras: tuple[str, ...]) -> list[Requirement]:
    """What the metadata of a package ask for, on this Python and platform, with these extras."""
    wanted = map(Requirement, importlib.metadata.requires(package) or ())
    chosen = ("", *extras)
    return [r for r in wanted if r.marker is None or any(r.marker.evaluate({"extra": e}) for e in chosen)]


def licence(package: str) -> str:
    """The licence that a package's metadata state.

    Raises:
        ValueError: they state none, or a whole text.
    """
    if package in _STATED_ELSEWHERE:
        return _STATED_ELSEWHERE[package]
    metadata = importlib.metadata.metadata(package)
    if expression := metadata.get("License-Expression"):
        return expression
    classifiers = metadata.get_all("Classifier") or []
    stated = [c.rsplit(" :: ", 1)[-1] for c in classifiers if c.startswith("License :: OSI Approved ::")]
    text = metadata.get("License") or ""
    # Some put the whole text there; its first line is its name.
    first = text.strip().splitlines()[0].strip() if text.strip() else ""
    for candidate in (first, *stated):
        if spdx := _SPDX.get(candidate.lower()):
            return spdx
        if re.fullmatch(r"[A-Za-z0-9.+-]+( (AND|OR) [A-Za-z0-9.+-]+)*", candidate):
            return candidate
    raise ValueError(f"{package}: no licence in its metadata: {first!r}, {stated}")


if __name__ == "__main__":
    sys.exit(main())
