from __future__ import annotations

from typing import Any

import pytest
from pydantic import Field

from schemas.config import Config, by_content, execution_only
from schemas.errors import ConfigError
from schemas.sft import PackSftConfig

MINIMAL: dict[str, Any] = {
    "output_dir": "out",
    "datasets": [{"name": "a", "path": "a.jsonl"}],
    "tokenizer": {"path": "tok"},
}


class Inner(Config):
    size: int = 4


class Example(Config):
    kept: int = 1
    inner: Inner = Field(default_factory=Inner)
    many: tuple[Inner, ...] = ()
    where: str = by_content("here")
    workers: int = execution_only(2)


def test_only_changed_fields_that_decide_bytes_are_hashed() -> None:
    assert Example().hash_fields() == {}
    assert Example(workers=9, where="there").hash_fields() == {}
    assert Example(kept=2, inner=Inner(size=8)).hash_fields() == {"kept": 2, "inner": {"size": 8}}
    assert Example(many=(Inner(), Inner(size=5))).hash_fields() == {"many": [{}, {"size": 5}]}
    assert Example(kept=2, inner=Inner(size=8)).hash_fields(["kept"]) == {"kept": 2}


def test_where_things_lie_and_how_they_run_never_enter_the_hash() -> None:
    base = PackSftConfig.parse(MINIMAL)
    moved = PackSftConfig.parse(
        {
            "output_dir": "elsewhere",
            "workers": 7,
            "max_reject_fraction": 1,
            "datasets": [{"name": "a", "path": "b.jsonl"}],
            "tokenizer": {"path": "other"},
        }
    )
    assert base.hash_fields() == moved.hash_fields()
    assert base.hash_fields() != PackSftConfig.parse({**MINIMAL, "seed": 1}).hash_fields()


@pytest.mark.parametrize(
    ("change", "where", "says"),
    [
        ({"sed": 1}, "sed", "did you mean 'seed'?"),
        ({"pack": {"sise": 1}}, "pack.sise", "did you mean 'size'?"),
        (
            {"datasets": [{"name": "a", "path": "b", "wieght": 2}]},
            "datasets[0].wieght",
            "did you mean 'weight'?",
        ),
        ({"zzz": 1}, "zzz", "known keys: alarms, datasets"),
        ({"pack": {"size": 1}}, "pack.size", "greater than or equal to 2 (got 1)"),
        ({"pack": {"order": "up"}}, "pack.order", "'shuffled' or 'decreasing'"),
        ({"datasets": [{"name": "a", "path": "b", "weight": 0}]}, "datasets[0].weight", "greater than 0"),
        ({"datasets": [{"name": "a", "path": "b", "weight": float("nan")}]}, "datasets[0].weight", "finite"),
        ({"splits": {"train": 0.5}}, "splits", "must be 1"),
        (
            {"storage": {"compression": "gzip", "compression_level": 12}},
            "storage",
            "gzip levels range from 1 to 9",
        ),
        ({"pack": {"size": 8, "pad_to_multiple": 8}}, "pack", "leaves no room"),
        ({"datasets": []}, "datasets", "at least 1"),
    ],
)
def test_errors_name_the_path_the_value_and_what_is_allowed(
    change: dict[str, Any], where: str, says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        PackSftConfig.parse({**MINIMAL, **change})
    assert caught.value.where == where
    assert says in caught.value.message
    assert caught.value.exit_code == 2


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        PackSftConfig.parse({"output_dir": "out"})
    assert caught.value.where == "datasets"
    assert "required" in caught.value.message
    assert "1 more: tokenizer" in caught.value.message


def test_every_field_of_the_form_is_described() -> None:
    def undescribed(schema: dict[str, Any], name: str) -> list[str]:
        return [
            f"{name}.{field}"
            for field, spec in schema.get("properties", {}).items()
            if not spec.get("description") and "$ref" not in spec
        ]

    schema = PackSftConfig.model_json_schema()
    missing = undescribed(schema, "PackSftConfig")
    for name, definition in schema["$defs"].items():
        missing += undescribed(definition, name)
    assert missing == []
