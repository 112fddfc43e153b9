"""The commands and snippets of documents, as a reader pastes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = (
    "README.md",
    *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
    "CONTRIBUTING.md",
)
# Their comments show commands.
COMMENTED = tuple(
    f"deployments/{path.name}" for path in sorted((ROOT / "deployments").iterdir()) if path.is_file()
)

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
_INLINE = re.compile(r"`((?:gristmill|make|prefect) [^`\n]+)`")


@dataclass(frozen=True)
class Block:
    """A fenced block, or the commands in the comments of a file.

    Attributes:
        where: `document:line`.
        language: after the fence.
    """

    where: str
    language: str
    text: str


def blocks(document: str) -> list[Block]:
    """The blocks of a document, in order."""
    text = (ROOT / document).read_text()
    if document in COMMENTED:
        lines = re.findall(r"^#   (\S.*)$", text, re.M)
        return [Block(f"{document}:1", "sh", "\n".join(lines))] if lines else []
    return [
        Block(f"{document}:{text.count(chr(10), 0, found.start()) + 1}", found[1], found[2])
        for found in _FENCE.finditer(text)
    ]


def inline_commands() -> Iterator[tuple[str, str]]:
    """Commands in running text, with the document each is in."""
    for document in (*DOCUMENTS, *COMMENTED):
        for command in _INLINE.findall((ROOT / document).read_text()):
            yield document, command
