"""Bound what one render of a chat template may compute and hold, the same on every machine.

Every operation of a template that can take long or grow a value asks first: a render has a budget of units, not of
seconds. A unit is one node of the template's syntax tree (about 30 ns) or two characters of text that are copied;
and no single value may outgrow `MAX_VALUE`. What an operation may take is computed from its arguments before it
runs: the sum of their sizes if it is known to be linear, else their product, so that an unknown filter is bounded
too. Together this keeps a render under about two seconds and 200 MB.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import jinja2
from jinja2.utils import Namespace
from markupsafe import Markup

# A quadratic template over 1,400 messages with eight nodes in its inner loop takes 16M.
UNIT_BUDGET = 24_000_000
# Bytes, roughly: characters of ASCII text, four a character of other text, 16 an entry of a list or dict.
MAX_VALUE = 16_000_000
_MAX_BITS = 2048
# Calls within calls. Python's own limit, 200 of them, depends on its version and on who calls the template.
MAX_DEPTH = 64
_ENTRY = 16
# A short text of its own, and its place in a list.
_TEXT_ITEM = 64


def names(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


FREE = names("attr d default first get items joiner keys last length next raise_exception range values")
# They look at the entries of a list, not inside them; `map` and the like call filters that are bounded themselves.
_SHALLOW = names("copy dict list map namespace reject rejectattr reverse select selectattr")
_LINEAR = names(
    "abs capitalize casefold count dictsort e endswith equalto escape find float forceescape ge greaterthan groupby "
    "gt in index int isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace "
    "istitle isupper le lessthan lower lt max min ne partition removeprefix removesuffix safe sort startswith string "
    "swapcase title tojson truncate unique upper urlencode wordcount xmlattr == != > >= < <="
)
# Searching from the end has no linear algorithm in CPython, and stripping none for many characters.
_FROM_END = names("lstrip rfind rindex rpartition rstrip strip trim")
_SPLITS = names("split rsplit splitlines")
# Regular expressions, repeated cutting, pure-Python codecs, sums of lists.
_QUADRATIC = names("decode encode pprint striptags sum urlize wordwrap")
_ITERATES = names("batch dict groupby join list map reject select slice sort unique")
_SPACES = "".join(chr(code) for code in range(0x3001) if chr(code).isspace())
_NUMBER = re.compile(r"\d+")
_NESTED_FIELD = re.compile(r"\{[^{}]*\{")


class TemplateBudgetError(jinja2.TemplateError):
    """The template took more steps or memory than any real conversation needs."""


class Stream:
    """The items of a generator, computed at once: bounded, but used up by one iteration as before."""

    __slots__ = ("_rest", "items")

    def __init__(self, items: list[Any]) -> None:
        self.items = items
        self._rest = iter(items)

    def __iter__(self) -> Iterator[Any]:
        return self._rest

    def __next__(self) -> Any:
        return next(self._rest)


class Budget:
    """What is left to one render. Compiled templates call its methods; see `sandbox.py`."""

    __slots__ = ("depth", "left")

    def __init__(self) -> None:
        self.left = UNIT_BUDGET
        self.depth = 0

    def charge(self, units: int) -> None:
        """Take units away.

        Raises:
            TemplateBudgetError: none are left.
        """
        self.left -= units
        if self.left < 0:
            raise TemplateBudgetError(
                f"the template took more than {UNIT_BUDGET:,} steps; does it loop for ever?"
            )

    def enter(self) -> None:
        """Begin a call of something that the template defines; whoever calls takes it from `depth` again.

        Raises:
            RecursionError: it is the 65th call within a call.
        """
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise RecursionError

    def make(self, size: int) -> None:
        """Charge for a value of this size before it is made.

        Raises:
            TemplateBudgetError: it is too large, or the budget is used up.
        """
        if size > MAX_VALUE:
            raise TemplateBudgetError(
                f"the template makes a value of more than {MAX_VALUE:,} bytes; does it repeat a text?"
            )
        self.charge(size >> 1)

    def loop(self, items: Any, cost: int) -> Any:
        """Charge for a loop over `items` whose body, which may be empty, costs `cost` units; return a collection."""
        if not hasattr(items, "__len__"):
            items = list(items)
        # Entering a loop or a macro costs about as much as 20 nodes.
        self.charge(len(items) * (cost + 1) + 20)
        return items

    def concat(self, parts: Iterable[str]) -> str:
        """Join printed texts."""
        parts = list(parts)
        self.make(sum(map(len, parts)))
        return "".join(parts)

    def plus(self, *parts: Any) -> Any:
        """Compute `a + b + ...`, in one piece if all are text."""
        size = 0
        for part in parts:
            if type(part) is not str:
                return self._add(parts)
            size += len(part)
        self.make(size)
        return "".join(parts)

    def _add(self, parts: tuple[Any, ...]) -> Any:
        total = parts[0]
        for part in parts[1:]:
            if type(part) is int or type(part) is float:
                _check_bits(total, part)
            elif isinstance(part, Collection):
                deep = isinstance(part, tuple)
                self.make(weigh(total) + weigh(part) if deep else _length(total) + _length(part))
                if isinstance(part, Markup) or isinstance(total, Markup):
                    self.make(6 * (weigh(total) + weigh(part)))
            total = total + part
        return total

    def tilde(self, context: Any, *parts: Any) -> str:
        """Compute `a ~ b ~ ...`."""
        self.make(sum(map(weigh, parts)))
        return str(jinja2.runtime.markup_join(parts) if context.eval_ctx.autoescape
                   else jinja2.runtime.str_join(parts))  # fmt: skip

    def text(self, value: Any) -> str:
        """Return the text of a value that is printed."""
        if isinstance(value, str):
            return value
        self.make(weigh(value))
        return str(value)

    def made(self, value: Any) -> Any:
        """Charge for a list, dict or tuple that was written out, and for what is in it: it may hold itself twice."""
        self.make(weigh(value))
        return value

    def cut(self, value: Any) -> Any:
        """Charge for a slice."""
        self.make(_length(value))
        return value

    def compared(self, value: Any) -> Any:
        """Charge for comparing with a value."""
        self.charge((_length(value) if isinstance(value, str) else weigh(value)) >> 3)
        return value

    def searched(self, value: Any) -> Any:
        """Charge for searching a value with `in`."""
        return value if type(value) is dict else self.compared(value)

    def operate(self, operator: str, left: Any, right: Any) -> None:
        """Charge for a binary operator other than `+`.

        Raises:
            TemplateBudgetError: its result is too large.
        """
        _check_bits(left, right)
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            if right > 0 and left.bit_length() * right > _MAX_BITS:
                raise TemplateBudgetError(f"{left} ** {right} is too large for a chat template")
        elif operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(times, int) and not isinstance(value, int | float):
                    self.make(weigh(value) * max(times, 1))
        elif operator == "%" and isinstance(left, str | bytes):
            self._format(left, (right,), "*")

    def shorten(self, text: str, arguments: tuple[Any, ...]) -> None:
        """Charge for looking at the ends of a text; every character may be compared with all of the argument."""
        size = len(text)
        for argument in arguments:
            if isinstance(argument, str):
                size += size * len(argument) >> 3
        self.charge(size >> 1)

    def before(self, name: str, arguments: tuple[Any, ...], more: dict[str, Any]) -> None:
        """Charge for a filter, a test or a method that is not written in the template.

        Args:
            name: what it is called; decides how its cost is computed.
            arguments: the value it works on, then its arguments.
            more: its keyword arguments.

        Raises:
            TemplateBudgetError: it could take too long, or its result could be too large.
        """
        if name in _LINEAR and len(arguments) < 3 and not more:
            size = 0
            for value in arguments:
                if type(value) is not str:
                    break
                size += len(value) if value.isascii() else 4 * len(value)
            else:
                self.make(size)
                return
        if name not in FREE or any(type(argument) is tuple for argument in arguments):
            self._admit(name, arguments + tuple(more.values()))

    def after(self, result: Any) -> Any:
        """Charge for the result of a filter, a test or a method; compute it if it is a generator."""
        kind = type(result)
        if kind is bool:
            return result
        if isinstance(result, str):
            self.make(_length(result))
        elif kind is int:
            _check_bits(result, 0)
        elif kind is list:
            self.make(_ENTRY * len(result))
        elif isinstance(result, Iterator) and kind is not Stream:
            items = list(result)
            self.make(_ENTRY * len(items))
            return Stream(items)
        return result

    def _admit(self, name: str, values: tuple[Any, ...]) -> None:
        first = values[0] if values else None
        if isinstance(first, str) and name in _ITERATES:
            self.make(_TEXT_ITEM * len(first))
        if name in _SHALLOW:
            self.make(sum(map(_length, values)))
        elif name in _SPLITS and isinstance(first, str):
            self._split(name, first, values[1:])
        elif name in ("format", "format_map") and isinstance(first, str | bytes):
            self._format(first, values[1:], "")
        elif name == "replace" and isinstance(first, str) and len(values) > 2 and isinstance(values[2], str):
            found = first.count(str(values[1])) if len(first) > 4096 else len(first) + 1
            self.make(weigh(first) + found * weigh(values[2]))
        elif name == "join" and values:
            # `texts | join(", ")` or `", ".join(texts)`.
            separator, texts = (first, values[1:]) if isinstance(first, str | bytes) else ("", values)
            count = max(map(_entries, texts), default=0)
            self.make(sum(map(weigh, texts)) + count * max(map(_separator, (separator, *values[1:]))))
        elif name in _LINEAR and not (name == "tojson" and len(values) > 1):
            self.make(sum(map(weigh, values)))
        else:
            self._unknown(name, values)

    def _unknown(self, name: str, values: tuple[Any, ...]) -> None:
        size = 1
        for position, value in enumerate(values):
            if isinstance(value, int | float):
                size *= int(min(max(abs(value), 1), MAX_VALUE + 1)) if position else 1
            else:
                size *= max(weigh(value), 1)
            if name in _FROM_END:
                # Nothing grows, but time does.
                self.charge(size >> 4)
            elif size > MAX_VALUE:
                break
        if name not in _FROM_END:
            self.make(size)
        if name == "round" and size > _MAX_BITS:
            raise TemplateBudgetError("a chat template may not round to so many digits")
        if name in _QUADRATIC:
            self.charge((size >> 4) ** 2)

    def _split(self, name: str, text: str, arguments: tuple[Any, ...]) -> None:
        separator = arguments[0] if arguments and isinstance(arguments[0], str) else None
        if separator and name != "splitlines":
            pieces = text.count(separator)
            if name == "rsplit":
                self.charge(len(text) * len(separator) >> 4)
        elif len(text) * _TEXT_ITEM < MAX_VALUE >> 2:
            pieces = len(text) >> 3
        else:
            pieces = sum(map(text.count, _SPACES))
        self.make(weigh(text) + pieces * _TEXT_ITEM)

    def _format(self, text: str | bytes, values: tuple[Any, ...], star: str) -> None:
        """Charge for `text % values` (`star` is "*") or `text.format(values)`."""
        if isinstance(text, bytes):
            text = text.decode("latin-1")
        # A width, a precision or an index: at most 9 digits count, which is too many already.
        size = len(text) + sum(int(number[:9]) for number in _NUMBER.findall(text))
        fields = text.count("%" if star else "{")
        inner = values[0] if len(values) == 1 and isinstance(values[0], tuple) else values
        if star in text if star else _NESTED_FIELD.search(text):
            size += max(fields, 1) * sum(min(abs(v), MAX_VALUE + 1) for v in inner if isinstance(v, int))
        self.make(size + fields * sum(map(weigh, values)))


def weigh(value: Any) -> int:
    """Estimate the size of a value's text, including everything in it as often as it would be printed.

    Stops above `MAX_VALUE`.

    >>> weigh("ab"), weigh(["ab", "ab"])
    (2, 20)
    """
    if isinstance(value, str):
        return len(value) if value.isascii() else 4 * len(value)
    size = 0
    rest: list[Any] = [value]
    while rest and size <= MAX_VALUE:
        value = rest.pop()
        if isinstance(value, str):
            size += len(value) if value.isascii() else 4 * len(value)
            continue
        if isinstance(value, bytes):
            size += 4 * len(value)
            continue
        size += _ENTRY
        if isinstance(value, dict):
            size += _ENTRY * len(value)
            rest += value.keys()
            rest += value.values()
        elif isinstance(value, list | tuple):
            rest += value
        elif isinstance(value, Stream):
            rest += value.items
        elif isinstance(value, Namespace):
            rest.append(object.__getattribute__(value, "_Namespace__attrs"))
        elif isinstance(value, Collection):  # views of a dict; a range
            rest += value
    return size


def _length(value: Any) -> int:
    """Estimate the size of a value without what is in it."""
    if isinstance(value, str):
        return len(value) if value.isascii() else 4 * len(value)
    return _ENTRY * _entries(value)


def _entries(value: Any) -> int:
    if isinstance(value, Stream):
        return len(value.items)
    return len(value) if isinstance(value, Collection) else 1


def _separator(value: Any) -> int:
    return weigh(value) if isinstance(value, str | bytes) else 1


def _check_bits(left: Any, right: Any) -> None:
    for value in (left, right):
        if isinstance(value, int) and value.bit_length() > _MAX_BITS:
            raise TemplateBudgetError(f"the template computes a number of more than {_MAX_BITS} bits")
