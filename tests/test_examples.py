"""The example configurations load as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.configs import load_config
from flows.registry import FLOWS, FlowEntry

DEPLOYMENTS = Path(__file__).resolve().parents[1] / "deployments"


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
def test_every_flow_has_an_example_that_loads(flow: FlowEntry) -> None:
    config = flow.parse(load_config(str(DEPLOYMENTS / f"{flow.module}.yaml")))
    assert config.output_dir.startswith("runs-output/")
