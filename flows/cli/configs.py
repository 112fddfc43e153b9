"""Read configuration files: safe YAML, overrides from the command line, one readable error."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

import yaml

from schemas.errors import ConfigError
from tasks.storage.reading import read_text

_STEP = re.compile(r"([A-Za-z_][\w-]*)|\[(\d+)\]")


class _Loader(yaml.SafeLoader):
    """Load safe YAML, and refuse duplicate keys; PyYAML would silently keep the last value.

    Also read JSON's escapes of characters beyond 16 bits, which PyYAML leaves as two halves.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str | int | float | bool) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} appears twice", key_node.start_mark
                )
            if isinstance(key, str | int | float | bool):
                seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> str:
        text = str(super().construct_scalar(node))
        try:
            return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError:
            raise yaml.constructor.ConstructorError(
                None, None, "the text contains half of a UTF-16 pair", node.start_mark
            ) from None


def load_config(path: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Load the configuration in a YAML (or JSON) file, and apply `path=value` overrides.

    Raises:
        ConfigError: the file is missing, is not YAML or is not a mapping, or an override does not fit.
    """
    try:
        text = read_text(path)
    except OSError as error:
        raise ConfigError(
            f"cannot read the configuration: {error.strerror}", code="missing_config", where=path
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the configuration is not UTF-8: {error}", where=path) from error
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
