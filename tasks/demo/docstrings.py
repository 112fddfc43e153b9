"""Turn the standard library's docstrings into chats: "What does X do?", answered with X's docstring."""

from __future__ import annotations

import ast
import functools
import inspect
import json
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from tasks.storage.atomic import AtomicFile
from tasks.storage.listing import walk
from tasks.storage.reading import read_text

_SKIPPED = {"test", "tests", "idlelib", "lib2to3", "site-packages", "__pycache__", "turtledemo"}
_SHORTEST_CHARACTERS = 40


def library_sources() -> Iterator[tuple[str, str]]:
    """Yield the dotted name and source text of the standard library's modules, sorted by name."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in walk(root, "*.py"):
        relative = path.relative_to(root)
        if _SKIPPED.intersection(relative.parts):
            continue
        try:
            text = read_text(path)
        except (OSError, UnicodeDecodeError):
            continue
        yield ".".join(relative.with_suffix("").parts).removesuffix(".__init__"), text


def docstring_chats() -> Iterator[dict[str, object]]:
    """Yield one chat row for each public function or class with a real docstring."""
    yield from _chats()


@functools.cache
def _chats() -> tuple[dict[str, object], ...]:
    """Cache the rows: parsing the standard library takes two seconds, and the rows are needed several times."""
    return tuple(_read_chats())


def _read_chats() -> Iterator[dict[str, object]]:
    for module, text in library_sources():
        for name, kind, docstring in _documented(text):
            yield {
                "messages": [
                    {"role": "system", "content": "You explain the Python standard library."},
                    {"role": "user", "content": f"What does the {kind} `{module}.{name}` do?"},
                    {"role": "assistant", "content": docstring},
                ]
            }


def _documented(text: str) -> Iterator[tuple[str, str, str]]:
    with warnings.catch_warnings():
        # Old modules contain escapes that newer compilers warn about.
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            return
    for node in tree.body:
        if not isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        ) or node.name.startswith("_"):
            continue
        docstring = inspect.cleandoc(ast.get_docstring(node) or "")
        if len(docstring) >= _SHORTEST_CHARACTERS:
            yield node.name, "class" if isinstance(node, ast.ClassDef) else "function", docstring


def write_chats(path: Path) -> int:
    """Write the chat rows as JSONL; return how many."""
    rows = 0
    with AtomicFile(path) as file:
        for row in docstring_chats():
            file.write(json.dumps(row).encode() + b"\n")
            rows += 1
    return rows
