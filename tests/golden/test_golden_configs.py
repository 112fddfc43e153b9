"""Defaults, and what the example configurations become, are those recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden.configs import changed_defaults, record_defaults, record_examples
from golden.record import Values, change, load

from flows.cli.registry import FLOWS

NAMES = [flow.name for flow in FLOWS]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Values]:
    return record_examples(tmp_path_factory.mktemp("examples"))


@pytest.mark.parametrize("flow", NAMES)
def test_every_example_has_its_recorded_hash(flow: str, found: dict[str, Values]) -> None:
    name = f"{flow}.examples"
    difference = change(load(name), found[name])
    assert difference is None, f"{name}: {difference}"


@pytest.mark.parametrize("flow", NAMES)
def test_no_default_changes_without_a_format_version(flow: str) -> None:
    name = f"{flow}.defaults"
    difference = changed_defaults(load(name), record_defaults()[name])
    assert difference is None, f"{name}: {difference}"


def test_examples_of_both_kinds_are_pinned(found: dict[str, Values], tmp_path: Path) -> None:
    for flow in NAMES:
        pinned = found[f"{flow}.examples"]["examples"]
        assert len(pinned) == 3 and f"prefect.yaml {flow}" in pinned
