"""Run chat templates in a sandbox: no file access, no unsafe attributes, no clock, no endless loops.

Templates get the same environment as in transformers (`raise_exception`, `tojson`, `namespace`, loop controls,
`{% generation %}`), with three differences:

* `strftime_now` exists only when a date is configured: today's date would change the output every day.
* Loops, macro calls and `*`/`**` use up a budget of steps, not seconds, so a template that loops forever
  fails at the same point on every machine.
* A generation block prints private-use marks around its text. They survive macros, loops and `set` blocks
  and show exactly where the assistant's text is; `masks.py` removes them.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from schemas.errors import ConfigError
from tasks.run.rejects import RowRejected

# We reserve supplementary private use area B inside rendered text; content with such a character is escaped
# before rendering (see escape.py), so a mark can never be forged.
GENERATION_OPEN = "\U0010fffc"
GENERATION_CLOSE = "\U0010fffd"
_RESERVED = re.compile("[\ud800-\udfff\U00100000-\U0010fffd]")

# A quadratic template over 1,400 messages fits; 2M steps take about a second.
STEP_BUDGET = 2_000_000
_MAX_REPEATED = 10_000_000
_BUDGET = "_gristmill_budget"
# transformers fills the first from the others, because templates read different ones.
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")

# In `message.items`, the method takes precedence over a key of that name.
_DICT_ATTRIBUTES = frozenset(dir(dict))

Message = dict[str, Any]


class TemplateBudgetError(jinja2.TemplateError):
    """The template took more steps than any real conversation needs."""


class _Budget:
    """Count the steps of one render; called by the nodes that `_Environment` inserts."""

    def __init__(self) -> None:
        self.left = STEP_BUDGET

    def __call__(self, iterable: Any = ()) -> Any:
        items = iterable if hasattr(iterable, "__len__") else list(iterable)
        # Entering a block costs about as much as 20 iterations of a plain loop.
        self.left -= len(items) + 20
        if self.left < 0:
            raise TemplateBudgetError(
                f"the template took more than {STEP_BUDGET:,} steps; does it loop for ever?"
            )
        return items


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["*", "**"])

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = _budget_call([loop.iter], loop.lineno)
            if loop.recursive:
                loop.body.insert(0, nodes.ExprStmt(_budget_call([], loop.lineno)))
        macros: list[nodes.Macro | nodes.CallBlock] = list(tree.find_all(nodes.Macro))
        for macro in [*macros, *tree.find_all(nodes.CallBlock)]:
            macro.body.insert(0, nodes.ExprStmt(_budget_call([], macro.lineno)))
        tree.set_environment(self)
        return tree

    def getattr(self, obj: Any, attribute: str) -> Any:
        # `message.role`: the same answer as jinja2's, without raising and catching AttributeError first.
        if type(obj) is dict and attribute in obj and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute]
        return super().getattr(obj, attribute)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and not (abs(left) <= 2**31 and abs(right) <= 64):
            raise jinja2.TemplateError(f"{left} ** {right} is too large for a chat template")
        if operator == "*":
            for sequence, times in ((left, right), (right, left)):
                if isinstance(sequence, str | list | tuple) and len(sequence) * int(times) > _MAX_REPEATED:
                    raise jinja2.TemplateError(f"repeating a sequence {times} times is too large")
        return super().call_binop(context, operator, left, right)


def _budget_call(arguments: list[nodes.Node], line: int) -> nodes.Call:
    call = nodes.Call(nodes.Name(_BUDGET, "load"), arguments, [], None, None)
    call.set_lineno(line)
    return call


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}`: prints its body between two marks, in a scope of its own."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return [
            _mark(GENERATION_OPEN, line),
            nodes.Scope(body).set_lineno(line),
            _mark(GENERATION_CLOSE, line),
        ]


def _mark(text: str, line: int) -> nodes.Output:
    output = nodes.Output([nodes.TemplateData(text)])
    output.set_lineno(line)
    return output


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@functools.cache
def _environment(date: datetime.date | None) -> _Environment:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    if date is not None:
        environment.globals["strftime_now"] = date.strftime
    return environment


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: Jinja source.
        variables: variables every render sees: special tokens and the configured extras.
        date: what `strftime_now` formats; `None` leaves it undefined.

    Raises:
        ConfigError: the source does not compile.

    Attributes:
        mentions_messages: whether it reads `messages` at all.
        marks_generation: whether it has generation blocks; `one_block_a_message`: exactly one for each answer.
    """

    def __init__(self, source: str, variables: dict[str, Any], date: datetime.date | None = None) -> None:
        self.source = source
        self._variables = variables
        environment = _environment(date)
        _refuse_reserved(source)
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(source)
            # Every render copies the globals; copying jinja2's chain of maps took a third of the render.
            self._template.globals = dict(self._template.globals)
        except Exception as error:
            # Besides Jinja's own errors: `{% break %}` outside a loop is Python's SyntaxError.
            line = f" (line {error.lineno})" if isinstance(error, jinja2.TemplateSyntaxError) else ""
            raise ConfigError(
                f"the chat template does not compile: {getattr(error, 'msg', None) or error}{line}",
                code="bad_template",
                where="tokenizer.chat_template",
            ) from error
        self.mentions_messages = "messages" in meta.find_undeclared_variables(tree)
        self.marks_generation = _generation_blocks(tree) > 0
        # One block, in the loop over the messages alone: a loop inside it or a macro could print more.
        inner = (*(loop for outer in tree.find_all(nodes.For) for loop in outer.find_all(nodes.For)),
                 *tree.find_all((nodes.Macro, nodes.CallBlock)))  # fmt: skip
        self.one_block_a_message = _generation_blocks(tree) == 1 and not any(map(_generation_blocks, inner))

    def render(self, messages: list[Message], tools: list[Any] | None, *, prompt: bool = False) -> str:
        """Render the conversation as text, including generation marks.

        Args:
            messages: role/content dicts of plain JSON values.
            tools: tool schemas, or `None`.
            prompt: end with the header that prompts for the assistant's answer.

        Raises:
            RowRejected: `template_error`, with the error of the template; `template_budget`, it took too many steps.
        """
        try:
            return self._template.render(
                messages=[_with_reasoning(message) for message in messages],
                tools=tools,
                documents=None,
                add_generation_prompt=prompt,
                **{_BUDGET: _Budget()},
                **self._variables,
            )
        except TemplateBudgetError as error:
            raise RowRejected("template_budget", str(error)) from None
        except RecursionError:
            raise RowRejected("template_error", "the template recurses too deeply") from None
        except Exception as error:
            # A template is third-party code and may raise anything: KeyError, TypeError, its own exception.
            raise RowRejected("template_error", f"{type(error).__name__}: {error}"[:500]) from None

    def check_terminates(self) -> None:
        """Render a two-message conversation to find a template that can never work.

        Raises:
            ConfigError: it exceeds the step budget. Other errors are left to the rows: a template may
                refuse this conversation and accept the user's.
        """
        try:
            self.render([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], None)
        except RowRejected as rejected:
            if rejected.reason == "template_budget":
                raise ConfigError(
                    rejected.detail, code="bad_template", where="tokenizer.chat_template"
                ) from None


def _generation_blocks(node: nodes.Node) -> int:
    return sum(GENERATION_OPEN in data.data for data in node.find_all(nodes.TemplateData))


def _refuse_reserved(source: str) -> None:
    """Refuse a template that contains our own marks, with which it could forge masks."""
    found = _RESERVED.search(source)
    if found is not None:
        raise ConfigError(
            f"the chat template contains U+{ord(found[0]):X}; U+D800..U+DFFF are not characters, and "
            "U+100000..U+10FFFD are reserved for marks; remove it",
            code="bad_template",
            where="tokenizer.chat_template",
        )


def _with_reasoning(message: Message) -> Message:
    if message.keys().isdisjoint(REASONING_FIELDS):
        return message
    reasoning = next((message[key] for key in REASONING_FIELDS if message.get(key) is not None), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}
