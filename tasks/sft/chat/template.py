"""Run chat templates in a sandbox: no file access, no unsafe attributes, no clock, no endless loops.

Templates get the same environment as in transformers (`raise_exception`, `tojson`, `namespace`, loop controls,
`{% generation %}`), with three differences:

* `strftime_now` exists only when a date is configured: today's date would change the output every day.
* Whatever takes time or memory uses up a budget of steps, not seconds (see `budget.py`), so a template that loops
  forever fails at the same point on every machine. `lipsum` and `random` do not exist.
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

from schemas.errors import ConfigError
from tasks.run.rejects import RowRejected
from tasks.sft.chat.budget import MAX_DEPTH, Budget, TemplateBudgetError
from tasks.sft.chat.sandbox import BUDGET, SandboxedTemplates

# We reserve supplementary private use area B inside rendered text; content with such a character is escaped
# before rendering (see escape.py), so a mark can never be forged.
GENERATION_OPEN = "\U0010fffc"
GENERATION_CLOSE = "\U0010fffd"
_RESERVED = re.compile("[\ud800-\udfff\U00100000-\U0010fffd]")

# transformers fills the first from the others, because templates read different ones.
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")

Message = dict[str, Any]


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
def _environment(date: datetime.date | None) -> SandboxedTemplates:
    environment = SandboxedTemplates(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.add_filter("tojson", _tojson)
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
            self._template = environment.from_string(tree)
            self.mentions_messages = "messages" in meta.find_undeclared_variables(tree)
            # Every render copies the globals; copying jinja2's chain of maps took a third of the render.
            self._template.globals = dict(self._template.globals)
        except RecursionError as error:
            raise ConfigError(
                "the chat template does not compile: brackets, operators or blocks are nested too deeply, or "
                "there are too many in one expression; split it up with {% set %}",
                code="bad_template",
                where="tokenizer.chat_template",
            ) from error
        except Exception as error:
            # Besides Jinja's own errors: `{% break %}` outside a loop is Python's SyntaxError.
            line = f" (line {error.lineno})" if isinstance(error, jinja2.TemplateSyntaxError) else ""
            raise ConfigError(
                f"the chat template does not compile: {getattr(error, 'msg', None) or error}{line}",
                code="bad_template",
                where="tokenizer.chat_template",
            ) from error
        self.marks_generation = _generation_blocks(tree) > 0
        # One block, in the loop over the messages alone: a loop inside it or a macro could print more.
        inner = (*(loop for outer in tree.find_all(nodes.For) for loop in outer.find_all(nodes.For)),
                 *tree.find_all((nodes.Macro, nodes.CallBlock)))  # fmt: skip
        self.one_block_a_message = _generation_blocks(tree) == 1 and not any(map(_generation_blocks, inner))

    def render(
        self,
        messages: list[Message],
        tools: list[Any] | None,
        *,
        prompt: bool = False,
        budget: Budget | None = None,
    ) -> str:
        """Render the conversation as text, including generation marks.

        Args:
            messages: role/content dicts of plain JSON values.
            tools: tool schemas, or `None`.
            prompt: end with the header that prompts for the assistant's answer.
            budget: what the render may use up; `None` for a new one.

        Raises:
            RowRejected: `template_error`, with the error of the template; `template_budget`, it took too many steps
                or too much memory.
        """
        budget = budget or Budget()
        try:
            context = self._template.new_context(
                {
                    "messages": [_with_reasoning(message) for message in messages],
                    "tools": tools,
                    "documents": None,
                    "add_generation_prompt": prompt,
                    BUDGET: budget,
                    **self._variables,
                }
            )
            return budget.concat(self._template.root_render_func(context))
        except TemplateBudgetError as error:
            raise RowRejected("template_budget", str(error)) from None
        except RecursionError:
            # From `Budget.enter`, or from Python: templates can nest blocks in what they call.
            raise RowRejected(
                "template_error",
                f"the template recurses too deeply: at most {MAX_DEPTH} calls of macros, loops and blocks may be "
                "within each other",
            ) from None
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
