"""A form's values at a real server: refused before there is a run, with the field's path."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support import SMALLEST

from flows.cli.registry import FLOWS

PARAMETERS = SMALLEST


@pytest.fixture(scope="module")
def api(prefect_api: str) -> Iterator[httpx.Client]:
    auth = httpx.BasicAuth(*os.environ["PREFECT_API_AUTH_STRING"].split(":"))
    with httpx.Client(base_url=prefect_api, auth=auth) as client:
        yield client


@pytest.fixture(scope="module")
def deployments(api: httpx.Client) -> dict[str, str]:
    """Every flow deployed as `prefect deploy` does it; their ids by name."""
    from prefect.utilities.callables import parameter_schema

    ids = {}
    for entry in FLOWS:
        flow = getattr(importlib.import_module(f"flows.{entry.module}"), entry.module)
        flow_id = api.post("/flows/", json={"name": entry.name}).raise_for_status().json()["id"]
        body = {
            "name": "form",
            "flow_id": flow_id,
            "parameters": {"config": PARAMETERS[entry.name]},
            "parameter_openapi_schema": parameter_schema(flow).model_dump(),
            "enforce_parameter_schema": True,
        }
        ids[entry.name] = api.post("/deployments/", json=body).raise_for_status().json()["id"]
    return ids


def submit(api: httpx.Client, deployment: str, config: dict[str, Any]) -> httpx.Response:
    return api.post(f"/deployments/{deployment}/create_flow_run", json={"parameters": {"config": config}})


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_example_is_accepted_as_it_is(api: httpx.Client, deployments: dict[str, str], name: str) -> None:
    answer = submit(api, deployments[name], PARAMETERS[name])
    assert answer.status_code == 201, answer.text
    api.delete(f"/flow_runs/{answer.json()['id']}").raise_for_status()


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("pack-sft", {"pack": {"size": 1}}, "config.pack.size"),
        ("pack-sft", {"datasets": [{"name": "a b", "path": "a"}]}, "config.datasets[0].name"),
        (
            "pack-sft",
            {"storage": {"compression": "gzip", "compression_level": 10}},
            "config.storage.compression_level",
        ),
        ("pack-sft", {"typo": 1}, "'typo' was unexpected"),
        ("sample-corpus", {"random_seed": 2**63}, "config.random_seed"),
        ("train-tokenizer", {"held_out": 1.5}, "config.held_out"),
        ("build-probe-rows", {"split": "random"}, "config.split"),
    ],
)
def test_a_wrong_value_is_refused_before_there_is_a_run(
    api: httpx.Client, deployments: dict[str, str], name: str, changes: dict[str, Any], expected: str
) -> None:
    answer = submit(api, deployments[name], {**PARAMETERS[name], **changes})
    assert answer.status_code == 409
    assert expected in answer.json()["detail"]
    of_it = {"deployments": {"id": {"any_": [deployments[name]]}}}
    assert api.post("/flow_runs/count", json=of_it).json() == 0


def test_the_form_checks_while_it_is_filled(api: httpx.Client, deployments: dict[str, str]) -> None:
    """The endpoint the form asks names the field step by step."""
    from prefect.utilities.callables import parameter_schema

    from flows.pack_sft import pack_sft

    body = {
        "schema": parameter_schema(pack_sft).model_dump(),
        "values": {"config": {**PARAMETERS["pack-sft"], "pack": {"size": 1}}},
    }
    answer = api.post("/ui/schemas/validate", json=body).raise_for_status().json()
    [config] = answer["errors"]
    [pack] = config["errors"]
    [size] = pack["errors"]
    assert not answer["valid"]
    assert (config["property"], pack["property"], size["property"]) == ("config", "pack", "size")
