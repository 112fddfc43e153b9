"""Base of every configuration model: frozen, closed, and knowing which fields change output bytes.

A field declared with `execution_only(...)` (workers, limits, verification) or `by_content(...)` (a path, whose
content is hashed instead) never enters a hash; a field at its default does not either, so adding an option
keeps old runs valid.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticCustomError, to_jsonable_python

from schemas.errors import USER_INFO, USER_INFO_REMEDY, ConfigError, has_secret, without_secrets

_NOT_HASHED = "x-not-hashed"

# The largest whole number that a browser's form, and JSON in most languages, carries exactly.
LARGEST = 2**53 - 1


def execution_only(default: Any, **kwargs: Any) -> Any:
    """Declare a field that changes how a run is executed, never what it produces."""
    return Field(default, json_schema_extra={_NOT_HASHED: True}, **kwargs)


def by_content(default: Any, **kwargs: Any) -> Any:
    """Declare a field that locates an input; the content found there is hashed instead of the path."""
    return Field(default, json_schema_extra={_NOT_HASHED: True}, **kwargs)


def _is_hashed(field: FieldInfo) -> bool:
    extra = field.json_schema_extra
    return not (isinstance(extra, Mapping) and extra.get(_NOT_HASHED))


class Config(BaseModel):
    """A frozen model that refuses unknown keys."""

    # Whoever prints a ValidationError must not print what is in a configuration, which may be a password.
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True, hide_input_in_errors=True
    )

    @field_validator("*")
    @classmethod
    def _refuse_secrets(cls, value: Any) -> Any:
        """Refuse passwords in URIs: configurations are stored with the run, and shown."""
        if any(map(has_secret, _texts(value))):
            raise PydanticCustomError(USER_INFO, USER_INFO_REMEDY)
        return value

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Return the schema behind Prefect's form, completed with what pydantic leaves out.

        Added are each field's place (the form sorts by it, and databases may reorder keys), its title where it refers
        to another definition, and its default where a factory creates it.
        """
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for position, (name, shown) in enumerate(properties.items()):
            field = cls.model_fields[name]
            shown["position"] = position
            if field.title is not None:
                shown["title"] = field.title
            if field.default_factory is not None:
                shown["default"] = to_jsonable_python(
                    field.get_default(call_default_factory=True, validated_data={})
                )
        return schema

    @classmethod
    def parse(cls, raw: Any) -> Self:
        """Validate a mapping, as read from YAML or JSON.

        Raises:
            ConfigError: names the path of the first wrong field, its value, and what is allowed; for an unknown
                key, the nearest known one.
        """
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            raise config_error(cls, error) from None

    @property
    def subject(self) -> str:
        """A few words that name the run of this configuration."""
        return ""

    @property
    def tags(self) -> tuple[str, ...]:
        """Tags by which its run can be found."""
        return ()

    def hash_fields(self, only: Iterable[str] | None = None) -> dict[str, Any]:
        """Collect the fields that can change output bytes and differ from their default, as plain values.

        Args:
            only: restrict to these fields.
        """
        wanted = None if only is None else set(only)
        fields: dict[str, Any] = {}
        for name, field in type(self).model_fields.items():
            if not _is_hashed(field) or (wanted is not None and name not in wanted):
                continue
            value = getattr(self, name)
            if value != field.get_default(call_default_factory=True, validated_data={}):
                fields[name] = _plain_fields(value)
        return fields


def few(names: Iterable[str], most: int = 3) -> str:
    """Join the first few names, and count the rest.

    >>> few(["a", "b", "c", "d", "e"])
    'a+b+c+2'
    """
    shown = list(names)
    more = [str(len(shown) - most)] if len(shown) > most else []
    return "+".join(shown[:most] + more)


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a value of a field, keys included; configurations inside it check their own."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (text for item in (*value, *value.values()) for text in _texts(item))
    elif isinstance(value, list | tuple):
        yield from (text for item in value for text in _texts(item))


def _plain_fields(value: Any) -> Any:
    if isinstance(value, Config):
        return value.hash_fields()
    if isinstance(value, list | tuple):
        return [_plain_fields(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain_fields(item) for key, item in value.items()}
    return value


def dotted(location: Iterable[int | str]) -> str:
    """Write a configuration path the way people do.

    >>> dotted(("datasets", 2, "weight"))
    'datasets[2].weight'
    """
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def config_error(model: type[BaseModel], error: ValidationError) -> ConfigError:
    """Turn a pydantic error into one readable `ConfigError`: the first fault, and how many more there are."""
    faults = _faults(error)
    first = faults[0]
    if first["type"] == "extra_forbidden":
        message = _unknown_key(model, first["loc"])
    elif first["type"] == "missing":
        message = "this required field is missing"
    elif first["type"] == USER_INFO:
        message = USER_INFO_REMEDY
    else:
        message = f"{_explained(model, first)} (got {_short(first['input'])})"
    if len(faults) > 1:
        others = ", ".join(dotted(fault["loc"]) for fault in faults[1:4])
        message += f"; and {len(faults) - 1} more: {others}"
    code = {"extra_forbidden": "unknown_key", USER_INFO: USER_INFO}.get(first["type"], "bad_config")
    return ConfigError(message, code=code, where=dotted(first["loc"]))


def _faults(error: ValidationError) -> list[dict[str, Any]]:
    """Report each fault once.

    A list that is only too short because its entries are wrong is left out; the alternatives of a value that may
    have several types become one fault at the value itself.
    """
    found: list[dict[str, Any]] = [
        {**fault, "loc": tuple(part for part in fault["loc"] if not _is_branch(part))}
        for fault in error.errors(include_url=False)
    ]
    faults: dict[tuple[int | str, ...], dict[str, Any]] = {}
    for fault in found:
        place: tuple[int | str, ...] = fault["loc"]
        inside = [other["loc"] for other in found if other["loc"][: len(place)] == place]
        if fault["type"] == "too_short" and len(inside) > 1:
            continue
        siblings = [loc[-1] for loc in (other["loc"] for other in found) if loc and loc[:-1] == place[:-1]]
        if len(siblings) > 1 and _SCALARS.keys() >= set(siblings):
            fault = {**fault, "type": "union", "loc": place[:-1], "msg": _alternatives(siblings)}
        faults.setdefault(fault["loc"], fault)
    return list(faults.values())


def _is_branch(part: int | str) -> bool:
    """Tell whether a part of a location names one of several types, which nobody wrote into a configuration."""
    return isinstance(part, str) and part.startswith(("constrained-", "tuple[", "list["))


def _alternatives(types: list[str]) -> str:
    return f"expected {' or '.join(_SCALARS[name] for name in types)}"


def _explained(model: type[BaseModel], fault: Mapping[str, Any]) -> str:
    """Say what is allowed, in the terms of someone who writes YAML."""
    kind = fault["type"]
    if kind in _EXPLAINED:
        return _EXPLAINED[kind].format(**fault.get("ctx", {}))
    # pydantic prefixes the text of a ValueError raised by one of our validators.
    text = str(fault["msg"]).removeprefix("Value error, ")
    if kind == "string_pattern_mismatch":
        field = _fields_at(model, fault["loc"][:-1]).get(str(fault["loc"][-1]))
        if field is not None and field.description:
            text = field.description
    return text


# pydantic's own texts speak of tuples, dictionaries and instances.
_EXPLAINED = {
    "tuple_type": "expected a list",
    "dict_type": "expected a mapping of keys to values",
    "model_type": "expected a mapping of keys to values",
    "too_short": "the list needs at least {min_length} entry",
}
_SCALARS = {"str": "text", "int": "a whole number", "bool": "true or false"}


def _short(value: Any, limit: int = 80) -> str:
    text = without_secrets(repr(value))
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _unknown_key(model: type[BaseModel], location: tuple[int | str, ...]) -> str:
    known = sorted(_fields_at(model, location[:-1]))
    key = str(location[-1])
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"known keys: {', '.join(known)}"
    return f"unknown key {key!r}; {hint}"


def _fields_at(model: type[BaseModel], location: tuple[int | str, ...]) -> Mapping[str, FieldInfo]:
    """Return the fields of the model at `location` below `model`."""
    current: type[BaseModel] | None = model
    for part in location:
        if isinstance(part, int) or current is None:
            continue
        field = current.model_fields.get(part)
        current = _model_in(field.annotation) if field is not None else current
    return current.model_fields if current is not None else {}


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _model_in(argument)
        if found is not None:
            return found
    return None
