"""Compile chat templates to code that asks a `Budget` before whatever can take long or grow.

The syntax tree is rewritten: loops, macros and blocks announce what their bodies cost; `+`, `~`, slices, literals
and comparisons call the budget. Filters, tests, calls and other operators pass through the sandbox anyway. Nothing
is computed at compile time but what is written as a constant, because all filters take the context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import BuiltinMethodType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import _PassArg

from tasks.sft.chat.budget import FREE, Budget, names

# The variable that holds the budget. It is no identifier, so no template can read or set it.
BUDGET = "gristmill budget"
# Three times the longest template of a well-known model; compiling takes up to 30 us and 3 KB a character.
MAX_SOURCE = 64 * 1024
# They decide by type alone.
_FREE_TESTS = names(
    "boolean callable defined divisibleby escaped even false filter float integer iterable mapping none number odd "
    "sameas sequence string test true undefined"
)
# What templates define themselves: they announce their own cost.
_OWN = (Macro, LoopContext, BlockReference)
_SMALL = 2**60
# Methods of a text that make none that is longer; most templates call only these.
_SHORTEN = frozenset(["lstrip", "rstrip", "strip", "startswith", "endswith"])
_SCOPES = ("_loop_vars", "_block_vars")
# In `message.items`, the method takes precedence over a key of that name.
_DICT_ATTRIBUTES = frozenset(dir(dict))
# Plain values, which the sandbox has nothing to check in.
_LOOP_ATTRIBUTES = names("depth depth0 first index index0 last length revindex revindex0")
# A text that is printed, or a list, is kept: its memory counts.
_KEPT = 12
# Calling a macro takes about as long as this many nodes.
_CALLED = 100


class SandboxedTemplates(ImmutableSandboxedEnvironment):
    """An environment for chat templates whose renders are bounded by the `Budget` in their context."""

    intercepted_binops = frozenset(["-", "*", "/", "//", "**", "%"])

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Both are random: the same rows would render differently each time.
        del self.globals["lipsum"], self.filters["random"]
        for name in self.filters.keys() - FREE:
            self.add_filter(name, self.filters[name])
        tests: dict[str, Any] = self.tests
        for name in tests.keys() - _FREE_TESTS:
            tests[name] = _bounded(self, name, tests[name])

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        """Put a filter behind the budget."""
        self.filters[name] = _bounded(self, name, function)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > MAX_SOURCE:
            raise jinja2.TemplateSyntaxError(
                f"it has {len(source):,} characters, and at most {MAX_SOURCE:,} are allowed; is it a template?",
                1,
            )
        tree = super()._parse(source, name, filename)
        _announce_costs(tree)
        _rewrite(tree)
        tree.set_environment(self)
        return tree

    def getattr(self, obj: Any, attribute: str) -> Any:
        # `message.role`: the same answer as jinja2's, without raising and catching errors first.
        if type(obj) is dict and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if type(obj) is LoopContext and attribute in _LOOP_ATTRIBUTES:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if type(argument) is str and type(obj) is dict:
            if argument in obj:
                return obj[argument]
            if argument not in _DICT_ATTRIBUTES:
                return self.undefined(obj=obj, name=argument)
        if type(argument) is tuple:
            # Its hash is computed anew each time, and no JSON object has such a key.
            raise jinja2.TemplateError("a tuple cannot be a key in a chat template")
        return super().getitem(obj, argument)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "-" and type(left) is int is type(right) and -_SMALL < left < _SMALL > abs(right):
            return left - right
        context.parent[BUDGET].operate(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        if (
            type(__obj) is BuiltinMethodType
            and type(__obj.__self__) is str
            and __obj.__name__ in _SHORTEN
            and all(map(_SCOPES.__contains__, kwargs))
        ):
            __context.parent[BUDGET].shorten(__obj.__self__, args)
            return __obj(*args)
        if isinstance(__obj, _OWN):
            budget = __context.parent[BUDGET]
            budget.enter()
            called = super().call(__context, __obj, *args, **kwargs)
            # An exception ends the render, so there is no `finally`.
            budget.depth -= 1
            return called
        method = __obj if type(__obj) is BuiltinMethodType else getattr(__obj, "__wrapped__", __obj)
        receiver = getattr(method, "__self__", None)
        values = args if receiver is None or isinstance(receiver, type) else (receiver, *args)
        # Compiled loops and blocks pass their variables along, for functions that take the context.
        scopes = {scope: kwargs.pop(scope) for scope in _SCOPES if scope in kwargs} if kwargs else kwargs
        budget = __context.parent[BUDGET]
        budget.before(getattr(method, "__name__", ""), values, kwargs)
        if method is __obj and type(receiver) is str:
            # Of these methods jinja2 knows nothing to check or to add; asking takes twice as long as the call.
            return budget.after(__obj(*args, **kwargs))
        return budget.after(super().call(__context, __obj, *args, **kwargs, **scopes))


class _Generator(CodeGenerator):
    """Writes code in which `budget` is that of the render."""

    def write_commons(self) -> None:
        super().write_commons()
        self.writeline(f"budget = context.parent[{BUDGET!r}]")
        self.writeline("concat = budget.concat")

    def visit_Call(  # noqa: N802 - jinja2's name
        self, node: nodes.Call, frame: Frame, forward_caller: bool = False
    ) -> None:
        if not isinstance(node.node, nodes.InternalName):
            super().visit_Call(node, frame, forward_caller=forward_caller)
            return
        self.write(f"{node.node.name}(")
        for argument in node.args:
            self.visit(argument, frame)
            self.write(", ")
        self.write(")")

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        if frame.eval_ctx.volatile or frame.eval_ctx.autoescape:
            super()._output_child_pre(node, frame, finalize)
        self.write("budget.text(")

    def _output_child_post(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        self.write(")")
        if frame.eval_ctx.volatile or frame.eval_ctx.autoescape:
            super()._output_child_post(node, frame, finalize)


SandboxedTemplates.code_generator_class = _Generator


def _bounded(environment: SandboxedTemplates, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    kind = _PassArg.from_obj(function)

    @jinja2.pass_context
    def bounded(context: Context, *args: Any, **kwargs: Any) -> Any:
        budget = context.parent[BUDGET]
        budget.before(name, args, kwargs)
        if kind is None:
            return budget.after(function(*args, **kwargs))
        given = {"context": context, "eval_context": context.eval_ctx, "environment": environment}[kind.name]
        return budget.after(function(given, *args, **kwargs))

    return bounded


def _announce_costs(tree: nodes.Template) -> None:
    for loop in tree.find_all(nodes.For):
        cost = _cost(loop.body) + (_cost([loop.test]) if loop.test else 0)
        loop.iter = _call("loop", [loop.iter, nodes.Const(cost)], loop.lineno)
        if loop.recursive:
            loop.body.insert(0, _announcement(_CALLED, loop.lineno))
    called: tuple[type[nodes.Node], ...] = (nodes.Macro, nodes.CallBlock, nodes.Block)
    for block in list(tree.find_all(called)):
        block.body.insert(0, _announcement(_cost(block.body) + _CALLED, block.lineno))  # type: ignore[attr-defined]


def _announcement(cost: int, line: int) -> nodes.Stmt:
    return nodes.ExprStmt(_call("charge", [nodes.Const(cost)], line)).set_lineno(line)  # type: ignore[return-value]


def _cost(body: Iterable[nodes.Node]) -> int:
    """Count the nodes that run at most, without the bodies that announce their own cost."""
    total = 0
    for node in body:
        total += 1
        if isinstance(node, nodes.If):
            branches = [node.body, node.else_, *(branch.body for branch in node.elif_)]
            total += _cost([node.test, *(branch.test for branch in node.elif_)]) + max(map(_cost, branches))
        elif isinstance(node, nodes.For):
            total += _cost([node.iter, *node.else_])
        elif isinstance(node, nodes.Macro | nodes.CallBlock | nodes.Block):
            total += _cost(node.iter_child_nodes(exclude=("body",)))
        else:
            if isinstance(node, nodes.Output):
                total += _KEPT * sum(not isinstance(child, nodes.TemplateData) for child in node.nodes)
            elif isinstance(node, nodes.List | nodes.Dict | nodes.Tuple):
                total += _KEPT
            total += _cost(node.iter_child_nodes())
    return total


def _rewrite(node: nodes.Node) -> None:
    """Replace the expressions under `node` that need the budget."""
    for name, value in node.iter_fields():
        if isinstance(value, list):
            value[:] = [_replaced(item) if isinstance(item, nodes.Node) else item for item in value]
        elif isinstance(value, nodes.Node):
            setattr(node, name, _replaced(value))


def _replaced(node: nodes.Node) -> nodes.Node:
    if isinstance(node, nodes.Add):
        return _call("plus", [_replaced(part) for part in _added(node)], node.lineno)
    _rewrite(node)
    if isinstance(node, nodes.Concat):
        return _call("tilde", [nodes.ContextReference(), *node.nodes], node.lineno)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _call("cut", [node], node.lineno)
    if isinstance(node, nodes.List | nodes.Dict) or (isinstance(node, nodes.Tuple) and node.ctx == "load"):
        return node if _is_constant(node) else _call("made", [node], node.lineno)
    if isinstance(node, nodes.Compare):
        _bound_comparison(node)
    return node


def _added(node: nodes.Expr) -> Iterator[nodes.Expr]:
    """Yield a, b and c of `a + b + c`."""
    operands = []
    while isinstance(node, nodes.Add):
        operands.append(node.right)
        node = node.left
    yield from (node, *reversed(operands))


def _bound_comparison(node: nodes.Compare) -> None:
    """Charge for comparing two values unless one is a constant, as in `message.role == "user"`."""
    left = node.expr
    for operand in node.ops:
        right = operand.expr
        if not (_is_constant(left) or _is_constant(right)):
            node.expr = _call("compared", [node.expr], node.lineno)
        if operand.op in ("in", "notin") and not _is_constant(right):
            operand.expr = _call("searched", [right], node.lineno)
        left = right


def _is_constant(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Const | nodes.List | nodes.Tuple | nodes.Dict | nodes.Pair) and all(
        map(_is_constant, node.iter_child_nodes())
    )


def _call(method: str, arguments: list[Any], line: int) -> nodes.Call:
    # As `Parser.free_identifier` makes them: a name of the generated code, out of the template's reach.
    name: nodes.InternalName = object.__new__(nodes.InternalName)
    nodes.Node.__init__(name, f"{Budget.__name__.lower()}.{method}", lineno=line)
    call = nodes.Call(name, arguments, [], None, None)
    call.set_lineno(line)
    return call
