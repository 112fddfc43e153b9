"""Small faults of a Python source, one at a time, each as the smallest change of its text.

Left alone: annotations, decorators, strings, what a `raise` says, and `strict=` of `zip`, which asserts what
callers already guarantee.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import NamedTuple

# For each operator: what it becomes. The boundary moves, or the answer turns round.
_COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}
_CALLED = {"int": "round", "round": "int", "min": "max", "max": "min", "any": "all", "all": "any"}
_CALLED |= {"minimum": "maximum", "maximum": "minimum"}
_STRIPPED = {"strip", "lstrip", "rstrip"}
_LARGE = 100


class Mutant(NamedTuple):
    """One fault: its line, that line before and after, and the source with it."""

    line: int
    before: str
    after: str
    source: str


def mutants(source: str) -> list[Mutant]:
    """Every fault of a source, in the order of the text.

    >>> [fault.after for fault in mutants("def f(a):\\n    return a > 0")]
    ['return None', 'return (a >= 0)', 'return (a <= 0)', 'return a > 1', 'return a > -1']
    """
    lines = source.splitlines(keepends=True)
    found: dict[str, Mutant] = {}
    for node, text in _faults(ast.parse(source)):
        first, last = node.lineno - 1, node.end_lineno - 1  # type: ignore[attr-defined]
        # Columns count the bytes of UTF-8.
        head = lines[first].encode()[: node.col_offset].decode()  # type: ignore[attr-defined]
        tail = lines[last].encode()[node.end_col_offset :].decode()  # type: ignore[attr-defined]
        changed = "".join([*lines[:first], head, text, tail, *lines[last + 1 :]])
        before = " ".join(line.strip() for line in lines[first : last + 1])
        found.setdefault(changed, Mutant(first + 1, before, (head + text + tail).strip(), changed))
    found.pop(source, None)
    return sorted(found.values(), key=lambda mutant: mutant.line)


def _faults(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Nodes, and the text that takes their place."""
    if isinstance(tree, ast.stmt):
        yield from ((tree, text) for text in _statements(tree))
    if isinstance(tree, ast.expr):
        for changed in _expressions(tree):
            text = ast.unparse(changed)
            yield tree, text if isinstance(changed, ast.Constant | ast.Call | ast.Name) else f"({text})"
    for child in _children(tree):
        yield from _faults(child)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.JoinedStr | ast.Raise | ast.Import | ast.ImportFrom):
        return
    skipped = {"annotation", "returns", "decorator_list", "bases"}
    for name, value in ast.iter_fields(node):
        if name in skipped or (isinstance(node, ast.keyword) and node.arg == "strict"):
            continue
        yield from (child for child in (value if isinstance(value, list) else [value]) if _is_node(child))


def _is_node(value: object) -> bool:
    return isinstance(value, ast.AST) and not isinstance(value, ast.expr_context | ast.operator | ast.cmpop)


def _statements(node: ast.stmt) -> Iterator[str]:
    """A statement removed, a result forgotten, a loop that ends or goes on."""
    match node:
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield "return None"
        case ast.Continue():
            yield "break"
        case ast.Break():
            yield "continue"
        case ast.Raise() | ast.Delete():
            yield "pass"
        case ast.Expr(value=ast.Call() | ast.Yield() | ast.YieldFrom()):
            yield "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "pass"
        case ast.AugAssign():
            yield "pass"
            changed = copy.copy(node)
            changed.op = _COMPUTED[type(node.op)]()
            yield ast.unparse(changed)


def _expressions(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare():
            for place, operator in enumerate(node.ops):
                for other in _COMPARED[type(operator)]:
                    operators = [*node.ops[:place], other(), *node.ops[place + 1 :]]
                    yield ast.Compare(node.left, operators, node.comparators)
        case ast.BoolOp():
            yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
            for place in range(len(node.values)):
                rest = [*node.values[:place], *node.values[place + 1 :]]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
        case ast.BinOp() if type(node.op) in _COMPUTED and not _is_text(node.left):
            yield ast.BinOp(node.left, _COMPUTED[type(node.op)](), node.right)
        case ast.UnaryOp():
            yield node.operand
        case ast.IfExp():
            yield ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield ast.Constant(value + 1)
            yield ast.Constant(value // 10 if value >= _LARGE else value - 1)
        case ast.Constant(value=float() as value):
            yield ast.Constant(value * 10)
            yield ast.Constant(value / 10)
        case ast.Call():
            yield from _calls(node)


def _calls(node: ast.Call) -> Iterator[ast.expr]:
    """Another function of the same form, or one keyword less."""
    match node.func:
        # `int` of an integer is the same as `round` of it.
        case ast.Name(id="int") if not isinstance(node.args[0], ast.BinOp):
            pass
        case ast.Name(id=name) if name in _CALLED:
            yield ast.Call(ast.Name(_CALLED[name]), node.args, node.keywords)
        case ast.Attribute(value=value, attr=name) if name in _CALLED:
            yield ast.Call(ast.Attribute(value, _CALLED[name]), node.args, node.keywords)
        case ast.Attribute(value=value, attr=name) if name in _STRIPPED:
            yield value
    for place, keyword in enumerate(node.keywords):
        if keyword.arg not in (None, "strict"):
            rest = [*node.keywords[:place], *node.keywords[place + 1 :]]
            yield ast.Call(node.func, node.args, rest)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
