"""The walls: which folder may import which, no cycles, no crowded folder, and Prefect only where it may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(path for top in ("schemas", "tasks", "flows") for path in (ROOT / top).rglob("*.py"))
HEAVY = {"numpy", "pyarrow", "duckdb", "transformers", "tokenizers", "torch", "grain"}
DOMAINS = ("sft", "corpus", "tokenizer", "probes")
MOST_MODULES = 16

# From the bottom up: a module imports from its own floor and from those below.
FLOORS = (
    {"schemas"},
    {"tasks.storage"},
    {"tasks.inputs", "tasks.spool", "tasks.packing"},
    {"tasks.run"},
    {"tasks.report"},
    {f"tasks.{domain}" for domain in DOMAINS},
    {"tasks.outputs", "tasks.demo"},
    {"tasks.runtime", "tasks.server", "steps"},
    {"flows"},
    {"flows.cli"},
)


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in SOURCES}


def room_of(module: str) -> str:
    """The folder that has a floor: `tasks.sft` for all below it."""
    parts = module.split(".")
    if parts[-1] == "steps":
        return "steps"
    if parts[0] == "flows":
        return "flows.cli" if parts[1:2] in (["cli"], ["__main__"]) else "flows"
    return parts[0] if parts[0] == "schemas" else ".".join(parts[:2])


def floor_of(module: str) -> int:
    room = room_of(module)
    if room == "tasks":  # the package itself
        return 0
    return next(number for number, rooms in enumerate(FLOORS) if room in rooms)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(tree: ast.Module, *, module_level: bool) -> Iterator[str]:
    """Dotted names a module imports; at module level, or anywhere in it."""
    for node in tree.body if module_level else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else node.module for name in names)


def ours(module: str) -> set[str]:
    """The modules of this project that `module` imports, wherever in it."""
    found = imports(tree_of(MODULES[module]), module_level=False)
    return {name for name in found if name in MODULES and name != module}


@pytest.mark.parametrize("module", MODULES)
def test_no_import_runs_up(module: str) -> None:
    for imported in ours(module):
        here, there = room_of(module), room_of(imported)
        assert floor_of(imported) <= floor_of(module), f"{module} imports {imported}, which lies above it"
        if floor_of(imported) == floor_of(module) and here != there and "steps" not in (here, there):
            is_neighbour = here not in FLOORS[5] and there not in FLOORS[5]
            assert is_neighbour, f"{module} imports {imported}: domains do not know each other"


def test_every_room_has_a_floor() -> None:
    rooms = {room_of(module) for module in MODULES} - {"tasks"}
    assert rooms <= set().union(*FLOORS)


def folder_of(module: str) -> str:
    path = MODULES[module]
    return module if path.name == "__init__.py" else module.rpartition(".")[0]


@pytest.mark.parametrize("unit", ["module", "folder"])
def test_there_is_no_cycle(unit: str) -> None:
    name = (lambda module: module) if unit == "module" else folder_of
    graph: dict[str, set[str]] = {}
    for module in MODULES:
        graph.setdefault(name(module), set()).update(name(other) for other in ours(module))
    left = {node: others - {node} for node, others in graph.items()}
    # Leaves go until none is left; what stays imports itself in the end.
    while leaves := {node for node, others in left.items() if not others & left.keys()}:
        left = {node: others for node, others in left.items() if node not in leaves}
    assert not left, f"imports go round among {sorted(left)}"


def test_no_folder_is_crowded() -> None:
    for folder in {path.parent for path in SOURCES}:
        modules = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(modules) <= MOST_MODULES, f"{folder.relative_to(ROOT)} holds {len(modules)} modules"


def may_import_prefect(module: str) -> bool:
    return room_of(module) in ("tasks.runtime", "tasks.server", "steps", "flows")


@pytest.mark.parametrize("module", MODULES)
def test_prefect_and_heavy_packages_stay_where_they_may_be(module: str) -> None:
    for imported in imports(tree_of(MODULES[module]), module_level=True):
        top = imported.split(".")[0]
        assert top != "prefect" or may_import_prefect(module), f"{module} imports prefect at module level"
        assert top not in HEAVY or room_of(module) not in ("flows", "flows.cli", "schemas"), (
            f"{module} imports {top}"
        )
        assert top not in ("transformers", "tokenizers", "torch", "grain"), f"{module} imports {top} eagerly"


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("flows.cli.main", {"prefect", "numpy", "pyarrow", "duckdb", "jinja2"}),
        ("tasks.sft.identity", {"prefect", "numpy", "pyarrow", "duckdb", "jinja2"}),
        ("tasks.corpus.identity", {"prefect", "numpy", "pyarrow", "duckdb", "jinja2"}),
        ("tasks.tokenizer.identity", {"prefect", "numpy", "pyarrow", "duckdb", "jinja2"}),
        ("tasks.probes.identity", {"prefect", "numpy", "pyarrow", "duckdb", "jinja2"}),
        ("tasks.probes.loader", {"prefect", "grain", "torch"}),
        ("tasks.run.history", {"prefect", "numpy", "pyarrow", "duckdb", "jinja2"}),
        ("tasks.outputs.validate", {"prefect", "transformers"}),
        ("tasks.sft.tokenize", {"prefect", "transformers", "tokenizers"}),
        ("tasks.sft.datasets", {"prefect", "torch", "transformers", "duckdb", "fsspec"}),
    ],
)
def test_importing_a_light_module_loads_nothing_heavy(module: str, forbidden: set[str]) -> None:
    code = f"import sys, {module}; print(*sorted({forbidden!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == []
