"""Every configuration as the form Prefect draws of it: complete, in order, and refusing what the model refuses."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator
from typing import Any

import pytest
from prefect.utilities.schema_tools import validate
from support import SMALLEST

from flows.cli.registry import FLOWS
from schemas.config import Config, dotted
from schemas.errors import ConfigError
from schemas.validation import ValidateConfig

MODELS: dict[str, type[Config]] = {
    "validate": ValidateConfig,
    **{flow.name: getattr(importlib.import_module(flow.schema), flow.config) for flow in FLOWS},
}

VALID = {**SMALLEST, "validate": {"path": "out"}}

# What is wrong, and the path both sides must give.
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("pack-sft", {"pack.size": 1}, "pack.size"),
    ("pack-sft", {"pack.order": "random"}, "pack.order"),
    ("pack-sft", {"pack.sizes": 5}, "pack"),
    ("pack-sft", {"seed": -1}, "seed"),
    ("pack-sft", {"datasets": []}, "datasets"),
    ("pack-sft", {"datasets.0.name": "a..b"}, "datasets[0].name"),
    ("pack-sft", {"datasets.0.name": "x" * 101}, "datasets[0].name"),
    ("pack-sft", {"datasets.0.weight": 0}, "datasets[0].weight"),
    ("pack-sft", {"datasets.0.where": {"a": [1]}}, "datasets[0].where.a"),
    ("pack-sft", {"datasets.0.fields": {"roles": {"Bot": "robot"}}}, "datasets[0].fields.roles.Bot"),
    ("pack-sft", {"tokenizer.path": ""}, "tokenizer.path"),
    ("pack-sft", {"tokenizer.date": "yesterday"}, "tokenizer.date"),
    ("pack-sft", {"storage": {"compression": "gzip", "compression_level": 10}}, "storage"),
    ("pack-sft", {"splits": {"train": 0}}, "splits.train"),
    ("sample-corpus", {"datasets.web.buckets": {"..": {"count": 1}}}, "datasets.web.buckets"),
    ("sample-corpus", {"datasets.web.buckets": {}}, "datasets.web"),
    ("sample-corpus", {"datasets.web.buckets": {"b": {"count": -1}}}, "datasets.web.buckets.b.count"),
    ("sample-corpus", {"datasets.web.keep_columns": ["a", "a"]}, "datasets.web.keep_columns"),
    ("sample-corpus", {"output_format": "csv"}, "output_format"),
    ("sample-corpus", {"compression": "gzip", "compression_level": 10}, ""),
    ("train-tokenizer", {"special_tokens": ["a", "a"]}, ""),
    ("train-tokenizer", {"held_out": 1}, "held_out"),
    ("build-probe-rows", {"input": ""}, "input"),
    ("build-probe-rows", {"input": ["rows", ""]}, "input"),
    ("build-probe-rows", {"compression": "none", "compression_level": 3}, ""),
    ("build-probe-rows", {"train_ratio": 1.5}, "train_ratio"),
    ("validate", {"level": "deep"}, "level"),
]


def fields(
    schema: dict[str, Any], path: str, definitions: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every place of a schema where a value is asked for, with the choices, items and values inside it."""
    if "$ref" in schema:
        schema = {**definitions[schema["$ref"].rpartition("/")[2]], **schema}
    yield path, schema
    for name, shown in schema.get("properties", {}).items():
        yield from fields(shown, f"{path}.{name}", definitions)
    for choice in schema.get("anyOf", []):
        yield from fields(choice, f"{path}|{choice.get('type', 'model')}", definitions)
    for inside in ("items", "additionalProperties"):
        if isinstance(schema.get(inside), dict):
            yield from fields(schema[inside], f"{path}[]", definitions)


def places(model: type[Config]) -> list[tuple[str, dict[str, Any]]]:
    schema = model.model_json_schema()
    return list(fields(schema, "", schema.get("$defs", {})))


@pytest.mark.parametrize("name", MODELS)
def test_every_field_has_a_title_help_and_a_place(name: str) -> None:
    seen = 0
    for path, schema in places(MODELS[name]):
        shown = schema.get("properties", {})
        assert [field["position"] for field in shown.values()] == list(range(len(shown))), path
        assert not shown or schema["additionalProperties"] is False, path
        for field, described in shown.items():
            seen += 1
            assert described.get("title"), f"{path}.{field} has no title"
            assert described.get("description", "").endswith("."), f"{path}.{field} has no help"
            assert "default" in described or field in schema["required"], f"{path}.{field} has no default"
    assert seen >= 2


@pytest.mark.parametrize("name", MODELS)
def test_every_value_is_bounded(name: str) -> None:
    for path, schema in places(MODELS[name]):
        kind = schema.get("type")
        if kind in ("integer", "number") and not path.endswith(("where[]|integer",)):
            assert {"minimum", "exclusiveMinimum"} & schema.keys(), f"{path} has no lower bound"
            assert {"maximum", "exclusiveMaximum"} & schema.keys(), f"{path} has no upper bound"
        elif kind == "string" and not path.endswith("where[]|string"):
            allowed = {"minLength", "pattern", "enum", "const", "format"}
            assert allowed & schema.keys(), f"{path} is any text, the empty one too"
        else:
            assert kind or "anyOf" in schema, f"{path} may be anything"


def changed(name: str, changes: dict[str, Any]) -> dict[str, Any]:
    raw = copy.deepcopy(VALID[name])
    for path, value in changes.items():
        holder: Any = raw
        *outer, last = path.split(".")
        for step in outer:
            holder = holder[int(step)] if isinstance(holder, list) else holder.setdefault(step, {})
        holder[last] = value
    return raw


def form_errors(model: type[Config], raw: dict[str, Any]) -> list[str]:
    """What Prefect's server says of the values, as paths."""
    schema = model.model_json_schema(ref_template="#/definitions/{model}")
    schema["definitions"] = schema.pop("$defs", {})
    return [dotted(error.absolute_path) for error in validate(raw, schema)]


@pytest.mark.parametrize("name", VALID)
def test_the_form_takes_what_the_model_takes(name: str) -> None:
    model = MODELS[name]
    filled = model.parse(VALID[name]).model_dump(mode="json")
    assert form_errors(model, VALID[name]) == []
    assert form_errors(model, filled) == []
    assert model.parse(filled) == model.parse(VALID[name])


@pytest.mark.parametrize(("name", "changes", "where"), WRONG)
def test_the_form_refuses_what_the_model_refuses(name: str, changes: dict[str, Any], where: str) -> None:
    raw = changed(name, changes)
    errors = form_errors(MODELS[name], raw)
    assert errors and all(error.startswith(where) for error in errors), errors
    with pytest.raises(ConfigError) as failure:
        MODELS[name].parse(raw)
    assert failure.value.where.startswith(where)
