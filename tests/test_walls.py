"""The storage wall: only `tasks.storage` opens, lists, measures, renames, removes and links.

To ask whether a name is there, and what kind it has (`exists`, `is_file`, `is_dir`, `is_symlink`), is open to all.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from test_layers import MODULES, tree_of

# Whoever is here says why.
EXCEPTIONS = {
    "tasks.server": "the state, logs and sources of the local server, which stay on the machine it runs on",
    "tasks.probes.records.process": "a program of its own, which imports nothing of ours; opens its standard input",
}
# Functions that touch a file system, by the module they come from.
FUNCTIONS = {
    "os": {
        "open", "listdir", "scandir", "walk", "stat", "lstat", "rename", "renames", "replace", "remove", "unlink",
        "link", "symlink", "readlink", "mkdir", "makedirs", "rmdir", "utime", "truncate", "chmod", "fsync",
    },
    "os.path": {"getsize", "getmtime"},
    "io": {"open"},
    "numpy": {"load", "save", "savez", "memmap", "fromfile", "loadtxt"},
    "mmap": {"mmap"},
    "pyarrow": {"OSFile", "memory_map", "input_stream", "output_stream"},
    "pyarrow.parquet": {"ParquetFile", "read_metadata", "read_schema", "read_table", "ParquetDataset"},
    "fcntl": {"flock", "lockf"},
}  # fmt: skip
# Modules that do nothing else.
MODULES_OF_STORAGE = {"fsspec", "glob", "shutil", "tempfile", "pyarrow.dataset", "pyarrow.fs"}
# What asks only whether a program is there.
HARMLESS = {"shutil.which"}
# Methods of paths. `replace` is one with a single argument; texts take two, dataclasses and times keywords.
METHODS = {
    "open", "read_bytes", "read_text", "write_bytes", "write_text", "iterdir", "glob", "rglob", "stat", "lstat",
    "unlink", "rename", "rmdir", "mkdir", "touch", "chmod", "symlink_to", "hardlink_to", "readlink", "replace",
}  # fmt: skip


def breaches(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of every call and import that goes through the wall."""
    names = bound(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in {full for _, full in imports_of(node)} - HARMLESS:
                if any(name == module or name.startswith(f"{module}.") for module in MODULES_OF_STORAGE):
                    yield node.lineno, name
        elif isinstance(node, ast.Call):
            called = dotted(node.func, names)
            module, _, function = called.rpartition(".")
            if called == "open" or function in FUNCTIONS.get(module, ()):
                yield node.lineno, called
            elif isinstance(node.func, ast.Attribute) and is_method(
                node, node.func.attr, module in FUNCTIONS
            ):
                yield node.lineno, f".{node.func.attr}"


def is_method(call: ast.Call, name: str, of_module: bool) -> bool:
    if name == "replace":
        return not of_module and len(call.args) == 1 and not call.keywords
    return name in METHODS and not of_module


def imports_of(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """The names that a statement binds, each with the full name of what it imports."""
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            yield alias.asname or alias.name, f"{node.module}.{alias.name}"
        else:
            yield alias.asname or alias.name.partition(".")[0], alias.name


def bound(tree: ast.Module) -> dict[str, str]:
    """What each imported name stands for."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name, full in imports_of(node):
                # `import os.path` binds `os`.
                found[name] = name if full.startswith(f"{name}.") else full
    return found


def dotted(node: ast.expr, names: dict[str, str]) -> str:
    """The full name that an expression spells; empty if it is none."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value, names)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


def is_inside(module: str, room: str) -> bool:
    return module == room or module.startswith(f"{room}.")


def stands_outside(module: str) -> bool:
    return not any(is_inside(module, room) for room in ("schemas", "tasks.storage", *EXCEPTIONS))


@pytest.mark.parametrize("module", [module for module in MODULES if stands_outside(module)])
def test_only_storage_touches_files(module: str) -> None:
    found = [f"line {line}: {name}" for line, name in breaches(tree_of(MODULES[module]))]
    assert not found, f"{module} goes past tasks.storage: {'; '.join(found)}"


@pytest.mark.parametrize("room", EXCEPTIONS)
def test_an_exception_is_needed(room: str) -> None:
    assert any(list(breaches(tree_of(MODULES[name]))) for name in MODULES if is_inside(name, room))


@pytest.mark.parametrize(
    "code",
    [
        "open('a')",
        "from pathlib import Path\nPath('a').open()",
        "import os\nos.replace('a', 'b')",
        "from os import replace\nreplace('a', 'b')",
        "import os as system\nsystem.scandir('a')",
        "import os.path\nos.path.getsize('a')",
        "import os.path\nos.unlink('a')",
        "path.replace(target)",
        "[entry for entry in (folder / 'a').iterdir()]",
        "def f():\n    import pyarrow.parquet as pq\n    return pq.ParquetFile('a')",
        "import numpy as np\nnp.load('a')",
        "import fsspec",
        "from shutil import rmtree",
        "import pyarrow.dataset as ds",
    ],
)
def test_a_breach_is_seen(code: str) -> None:
    assert list(breaches(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "'a'.replace('b', 'c')",
        "import dataclasses\ndataclasses.replace(piece, stop=1)",
        "from dataclasses import replace\nreplace(record, worker=None)",
        "from tasks.storage.reading import read_bytes\nread_bytes(path)",
        "import pyarrow as pa\npa.ipc.open_stream(data)",
        "import ast\nast.walk(tree)",
        "path.exists() and path.is_file()",
    ],
)
def test_what_is_allowed_is_no_breach(code: str) -> None:
    assert not list(breaches(ast.parse(code)))
