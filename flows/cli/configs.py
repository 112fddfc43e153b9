"""Read configuration files: safe YAML, overrides from the command line, one readable error."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Sequence
from typing import Any, NoReturn

import yaml

from schemas.errors import ConfigError
from tasks.storage.reading import read_given

# A configuration of a thousand data sets has 100 kB; a larger file is given by mistake, and takes minutes to parse.
_LARGEST = 2**20
_MOST_VALUES = 100_000
_STEP = re.compile(r"([A-Za-z_][\w-]*)|\[(\d+)\]")


class _Loader(yaml.SafeLoader):
    """Load safe YAML whose values mean what people and JSON mean by them.

    Numbers are those of JSON and YAML 1.2, with `_` between digits, `0x`, `.inf` and `.nan`. What programs read
    differently (see `_AMBIGUOUS`) is refused, not guessed. So are duplicate keys, of which PyYAML keeps the last.
    Also read JSON's escapes of characters beyond 16 bits, which PyYAML leaves as two halves.
    """

    def construct_document(self, node: yaml.Node) -> Any:
        self._sizes: dict[yaml.Node, int] = {}
        self._measure(node)
        return super().construct_document(node)

    def _measure(self, node: yaml.Node) -> int:
        """Return how many values a node has when each alias is written out."""
        known = self._sizes.get(node)
        if known is not None:
            if known == 0:
                _refuse("an alias refers to a value that it is in itself", node)
            return known
        self._sizes[node] = 0
        inside: Any = () if isinstance(node, yaml.ScalarNode) else node.value
        if isinstance(node, yaml.MappingNode):
            inside = itertools.chain.from_iterable(inside)
        size = 1 + sum(map(self._measure, inside))
        if size > _MOST_VALUES:
            _refuse(f"with its aliases written out, this has more than {_MOST_VALUES:,} values", node)
        self._sizes[node] = size
        return size

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                _refuse("`<<` is not supported; write the keys out", key_node)
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str | int | float | bool) and key in seen:
                _refuse(f"the key {key!r} appears twice", key_node)
            if isinstance(key, str | int | float | bool):
                seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> str:
        text = str(super().construct_scalar(node))
        try:
            return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError:
            _refuse("the text contains half of a UTF-16 pair", node)

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        text = node.value.replace("_", "").lower()
        if text.lstrip("+-") in (".inf", ".nan"):
            return float(text.replace(".", "", 1))
        whole = int(text, 16) if text.startswith("0x") and len(text) < _LONGEST else None
        if whole is None and len(text) < _LONGEST:
            with contextlib.suppress(ValueError):
                whole = int(text)
        if whole is not None and -(2**63) <= whole < 2**64:
            return whole
        if whole is not None or not set(text) & set(".e"):
            _refuse("this whole number has more than 64 bits; put it in quotes if it is text", node)
        return float(text)

    def refuse_ambiguous(self, node: yaml.ScalarNode) -> NoReturn:
        why = next(why for pattern, why in _AMBIGUOUS.items() if re.fullmatch(pattern, node.value))
        _refuse(f"{node.value[:40]} {why}", node)


def _refuse(why: str, node: yaml.Node) -> NoReturn:
    raise yaml.constructor.ConstructorError(None, None, why, node.start_mark)


# What YAML 1.1, YAML 1.2 and people read differently.
_AMBIGUOUS = {
    r"(?i:yes|no|on|off)": "is true or false for some programs, text for others: write true or false, or use quotes",
    r"[-+]?0[0-9_]+|[-+]?0[ob][0-7_]+": "is octal or binary for some programs: write a decimal number, or use quotes",
    r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?": "is a number to base 60 for some programs, a time for others: "
    "write a decimal number, or use quotes",
}
_NUMBER = (
    r"[-+]?(\d[\d_]*(\.[\d_]*)?|\.\d[\d_]*)([eE][-+]?\d+)?"
    r"|0[xX][0-9a-fA-F_]+|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
# No number of 64 bits is longer; Python refuses to read one of thousands of digits.
_LONGEST = 30

_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if not tag.endswith((":bool", ":int", ":float"))]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern, _firsts in (
    ("!ambiguous", "|".join(_AMBIGUOUS), "yYnNoO+-0123456789"),
    ("!number", _NUMBER, "+-.0123456789"),
    ("tag:yaml.org,2002:bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
):
    _Loader.add_implicit_resolver(_tag, re.compile(f"(?:{_pattern})$"), list(_firsts))
_Loader.add_constructor("!number", _Loader.construct_number)
_Loader.add_constructor("!ambiguous", _Loader.refuse_ambiguous)


def load_config(path: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Load the configuration in a YAML (or JSON) file, and apply `path=value` overrides.

    Raises:
        ConfigError: the file is missing, is not a file, is too large, is not YAML or is not a mapping, or an override
            does not fit.
    """
    try:
        text = _read(path)
    except OSError as error:
        raise ConfigError(
            f"cannot read the configuration: {error.strerror}", code="missing_config", where=path
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the configuration is not UTF-8: {error}", where=path) from error
    except ValueError as error:
        raise ConfigError(
            f"cannot read the configuration: {error}", code="missing_config", where=path
        ) from error
    try:
        raw = yaml.load(text, _Loader)  # noqa: S506 - _Loader is a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark is not None else path
        problem = getattr(error, "problem", None) or error
        raise ConfigError(f"not valid YAML: {problem}", code="bad_yaml", where=place) from error
    except (ValueError, RecursionError) as error:
        # PyYAML passes on Python's own errors, such as those for 2024-13-45 or very deep nesting.
        raise ConfigError(f"a value is not valid YAML: {error}", code="bad_yaml", where=path) from error
    if not isinstance(raw, dict):
        raise ConfigError(f"expected a mapping of keys, found {type(raw).__name__}", where=path)
    for override in overrides:
        _apply(raw, override)
    return raw


def _read(path: str) -> str:
    data = read_given(path, _LARGEST + 1)
    if len(data) > _LARGEST:
        raise ConfigError(
            f"the configuration is larger than {_LARGEST:,} bytes; is this a data file?", where=path
        )
    return data.decode()


def _apply(raw: dict[str, Any], override: str) -> None:
    path, found, text = override.partition("=")
    steps = _steps(path)
    if not found or not steps:
        raise ConfigError(
            f"cannot read the override {override!r}; write it as path=value, for example pack.size=8192",
            code="bad_override",
            where="--set",
        )
    try:
        value = yaml.load(text, _Loader)  # noqa: S506 - _Loader is a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = getattr(error, "problem", None) or error
        raise ConfigError(
            f"the value of {override!r} is not valid YAML: {reason}", code="bad_override", where="--set"
        ) from error
    holder: Any = raw
    for step, following in itertools.pairwise(steps):
        holder = _enter(holder, step, override, {} if isinstance(following, str) else [])
    if isinstance(steps[-1], int) and not (isinstance(holder, list) and steps[-1] < len(holder)):
        raise ConfigError(
            f"{override!r}: entry [{steps[-1]}] does not exist", code="bad_override", where="--set"
        )
    if isinstance(steps[-1], str) and not isinstance(holder, dict):
        raise ConfigError(
            f"{override!r}: {steps[-1]!r} is not an index of a list", code="bad_override", where="--set"
        )
    holder[steps[-1]] = value


def _enter(holder: Any, step: str | int, override: str, empty: Any) -> Any:
    if isinstance(step, str) and isinstance(holder, dict):
        if holder.get(step) is None:
            holder[step] = empty
        return holder[step]
    if isinstance(step, int) and isinstance(holder, list) and step < len(holder):
        return holder[step]
    raise ConfigError(f"{override!r}: there is nothing at {step!r}", code="bad_override", where="--set")


def _steps(path: str) -> list[str | int]:
    """Split `datasets[0].weight` into `["datasets", 0, "weight"]`; return `[]` if it is not a path."""
    steps: list[str | int] = []
    for part in path.split("."):
        matches = list(_STEP.finditer(part))
        if not matches or "".join(match[0] for match in matches) != part or matches[0][1] is None:
            return []
        steps += [match[1] if match[1] is not None else int(match[2]) for match in matches]
    return steps
