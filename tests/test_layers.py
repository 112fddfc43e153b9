"""The import direction: schemas <- store, kernels <- runtime, steps <- flows; and Prefect only where it may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(path for top in ("schemas", "tasks", "flows") for path in (ROOT / top).rglob("*.py"))
HEAVY = {"numpy", "pyarrow", "duckdb", "transformers", "tokenizers", "torch", "grain"}

# Layers from the bottom up; a module may import from its own layer and from those below.
LAYERS = ("schemas", "store", "kernels", "runtime", "steps", "flows")


def layer_of(module: str) -> str:
    parts = module.split(".")
    if parts[0] in ("schemas", "flows"):
        return parts[0]
    if parts[-1] == "steps":
        return "steps"
    return parts[1] if len(parts) > 1 and parts[1] in ("store", "runtime") else "kernels"


def may_import_prefect(module: str) -> bool:
    launchers = (
        "flows.__main__",
        "flows.cli",
        "flows.launch",
        "flows.server",
        "flows.configs",
        "flows.summary",
        "flows.demo",
        "flows.conversion",
        "flows.housekeeping",
        "flows.inspection",
        "flows.progress",
        "flows.rendering",
    )
    return layer_of(module) in ("runtime", "steps", "flows") and module not in launchers


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(tree: ast.Module, *, module_level: bool) -> Iterator[str]:
    """Dotted names a module imports; at module level, or anywhere in it."""
    for node in tree.body if module_level else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_module_imports_only_from_its_layer_and_below(path: Path) -> None:
    module = name_of(path)
    rank = LAYERS.index(layer_of(module))
    for imported in imports(ast.parse(path.read_text()), module_level=False):
        if imported.split(".")[0] in ("schemas", "tasks", "flows"):
            assert LAYERS.index(layer_of(imported)) <= rank, f"{module} imports {imported}"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_prefect_and_heavy_packages_stay_where_they_may_be(path: Path) -> None:
    module = name_of(path)
    for imported in imports(ast.parse(path.read_text()), module_level=True):
        top = imported.split(".")[0]
        assert top != "prefect" or may_import_prefect(module), f"{module} imports prefect at module level"
        assert top not in HEAVY or layer_of(module) not in ("flows", "schemas"), f"{module} imports {top}"
        assert top not in ("transformers", "tokenizers", "torch", "grain"), f"{module} imports {top} eagerly"


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("flows.cli", {"prefect", "numpy", "pyarrow", "duckdb", "jinja2"}),
        ("tasks.sft.identity", {"prefect", "numpy", "pyarrow", "duckdb", "jinja2"}),
        ("tasks.corpus.identity", {"prefect", "numpy", "pyarrow", "duckdb", "jinja2"}),
        ("tasks.probes.identity", {"prefect", "numpy", "pyarrow", "duckdb", "jinja2"}),
        ("tasks.probes.loader", {"prefect", "grain", "torch"}),
        ("tasks.store.runs", {"prefect", "numpy", "pyarrow", "duckdb", "jinja2"}),
        ("tasks.validation", {"prefect", "transformers"}),
        ("tasks.sft.tokenize", {"prefect", "transformers", "tokenizers"}),
        ("tasks.sft.datasets", {"prefect", "torch", "transformers", "duckdb", "fsspec"}),
    ],
)
def test_importing_a_light_module_loads_nothing_heavy(module: str, forbidden: set[str]) -> None:
    code = f"import sys, {module}; print(*sorted({forbidden!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == []
