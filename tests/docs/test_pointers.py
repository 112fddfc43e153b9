"""What documents point at is there: links, headings, modules."""

from __future__ import annotations

import re

import pytest
from docs.markdown import DOCUMENTS, ROOT

PATHS = [
    path.relative_to(ROOT).as_posix()
    for top in ("schemas", "tasks", "flows", "tests", "deployments")
    for path in (ROOT / top).rglob("*")
    if path.is_file()
] + [path.name for path in ROOT.iterdir() if path.is_file()]


def headings(document: str) -> set[str]:
    """The anchors that a page of this text has."""
    lines = re.findall(r"^#+ (.+)$", (ROOT / document).read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", (ROOT / document).read_text()):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / document).parent / path if path else ROOT / document
        assert file.is_file(), f"{document}: {target}"
        assert not anchor or anchor in headings(file.resolve().relative_to(ROOT).as_posix()), (
            f"{document}: {target}"
        )


@pytest.mark.parametrize("document", DOCUMENTS)
def test_modules_that_are_named_exist(document: str) -> None:
    for name in re.findall(r"`((?:\w+/)*\w+\.py)`", (ROOT / document).read_text()):
        assert any(f"/{path}".endswith(f"/{name}") for path in PATHS), f"{document}: {name}"
