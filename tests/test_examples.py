"""The example configurations load as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.cli.configs import load_config
from flows.cli.registry import FLOWS, FlowEntry
from schemas.validation import ValidateConfig

DEPLOYMENTS = Path(__file__).resolve().parents[1] / "deployments"


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
def test_every_flow_has_an_example_that_loads(flow: FlowEntry) -> None:
    config = flow.parse(load_config(str(DEPLOYMENTS / f"{flow.module}.yaml")))
    assert config.output_dir.startswith("runs-output/")


def deployed() -> list[tuple[str, str, dict[str, Any]]]:
    entries = yaml.safe_load((DEPLOYMENTS / "prefect.yaml").read_text())["deployments"]
    return [(entry["name"], entry["entrypoint"], entry["parameters"]["config"]) for entry in entries]


@pytest.mark.parametrize(("name", "entrypoint", "config"), deployed(), ids=lambda value: str(value)[:30])
def test_the_parameters_of_every_deployment_load(name: str, entrypoint: str, config: dict[str, Any]) -> None:
    module = entrypoint.split(".")[1]
    assert name.startswith(module.replace("_", "-"))
    if module == "validate":
        ValidateConfig.parse(config)
    else:
        [flow] = [flow for flow in FLOWS if flow.module == module]
        flow.parse(config)


def test_no_deployment_names_a_folder_of_a_machine() -> None:
    for name in ("prefect.yaml", "prefect-docker.yaml"):
        text = (DEPLOYMENTS / name).read_text()
        assert str(DEPLOYMENTS.parent) not in text and "/home/" not in text
