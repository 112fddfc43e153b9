"""What is public is documented, and says what it raises."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from test_layers import MODULES, tree_of

Function = ast.FunctionDef | ast.AsyncFunctionDef

# Share of the public functions and methods that have a docstring.
DOCUMENTED = 0.95
# Decorators after which a name says all: a value, or what a base class documents.
SPOKEN = {"property", "cached_property", "override", "overload"}


def functions(body: list[ast.stmt], inside: str = "") -> Iterator[tuple[str, Function]]:
    """Public functions, and public methods of public classes, with their dotted names."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from functions(node.body, f"{inside}{node.name}.")
        elif isinstance(node, Function) and not node.name.startswith("_"):
            yield f"{inside}{node.name}", node


def decorators(function: Function) -> set[str]:
    return {
        ast.unparse(decorator).partition("(")[0].rpartition(".")[2] for decorator in function.decorator_list
    }


def raised(function: Function) -> set[str]:
    """The errors that the function itself raises by name; what it re-raises or calls does not count."""
    found = set()
    for node in walk(function):
        if (
            isinstance(node, ast.Raise)
            and isinstance(node.exc, ast.Call)
            and isinstance(node.exc.func, ast.Name)
        ):
            found.add(node.exc.func.id)
    return {
        name for name in found if name[:1].isupper() and name not in ("NotImplementedError", "AssertionError")
    }


def walk(function: Function) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions inside it."""
    pending: list[ast.AST] = list(function.body)
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            pending += ast.iter_child_nodes(node)


def public() -> Iterator[tuple[str, Function]]:
    for module, path in MODULES.items():
        for name, function in functions(tree_of(path).body):
            yield f"{module}:{name}", function


def test_every_module_says_what_it_is_for() -> None:
    assert [module for module, path in MODULES.items() if not ast.get_docstring(tree_of(path))] == []


def test_public_functions_are_documented() -> None:
    asked = [(name, function) for name, function in public() if not decorators(function) & SPOKEN]
    missing = [name for name, function in asked if not ast.get_docstring(function)]
    assert len(missing) <= (1 - DOCUMENTED) * len(asked), "\n".join(missing)


def test_what_a_function_raises_is_said() -> None:
    silent = [
        f"{name}: {', '.join(sorted(raised(function)))}"
        for name, function in public()
        if raised(function)
        and not decorators(function) & SPOKEN
        and "raise" not in (ast.get_docstring(function) or "").lower()
    ]
    assert silent == []
