"""One run of each flow and format gives the recorded keys, values and bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from golden.cases import CASES
from golden.record import UPDATE, VALUES, Kind, Values, change, load, locked, record_run, unlocked

from flows.cli.registry import FLOWS
from schemas.sft import StorageFormat


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Values]:
    """What a case gives now; each is run once."""
    made: dict[str, Values] = {}

    def run(name: str) -> Values:
        if name not in made:
            made[name] = record_run(CASES[name], tmp_path_factory.mktemp(name) / "out")
        return made[name]

    return run


@pytest.mark.parametrize("name", CASES)
def test_keys_and_values_are_those_recorded(name: str, found: Callable[[str], Values]) -> None:
    difference = change(load(name), found(name), Kind.LOGICAL)
    assert difference is None, f"{name}: {difference}"


@pytest.mark.parametrize("name", CASES)
def test_bytes_are_those_recorded(name: str, found: Callable[[str], Values]) -> None:
    strangers = unlocked(CASES[name].packages)
    if strangers:
        pytest.skip(f"bytes are compared under the locked versions only: {'; '.join(strangers)}")
    difference = change(load(name), found(name), Kind.BYTES)
    assert difference is None, f"{name}: {difference}"


@pytest.mark.parametrize("name", CASES)
def test_golden_bytes_were_made_by_locked_versions(name: str) -> None:
    recorded = load(name)
    assert recorded is not None
    old = {p: v for p, v in recorded["packages"].items() if v not in locked()[p]}
    assert not old, f"{name} was recorded with {old}, which the lock no longer has: run {UPDATE}"


def test_every_flow_and_format_has_a_case() -> None:
    assert {case.flow for case in CASES.values()} == {flow.name for flow in FLOWS}
    formats = {case.raw.get("storage", {}).get("format", "parquet") for case in CASES.values()}
    assert formats == {storage_format.value for storage_format in StorageFormat}


def test_nothing_is_recorded_that_nothing_is_compared_with() -> None:
    expected = {*CASES, *(f"{flow.name}.{kind}" for flow in FLOWS for kind in ("defaults", "examples"))}
    assert {path.stem for path in VALUES.glob("*.json")} == expected


def test_the_golden_runs_cover_what_can_happen_to_a_row() -> None:
    """Inputs that lose their faults would pin nothing about them."""
    ledgers = [values["ledger"] for name in CASES if (values := load(name))]
    assert {reason for ledger in ledgers for reason in ledger["rejected"]} >= {
        "invalid_json", "no_trained_token", "over_long", "null_text", "nan_rtt", "bad_dst_addr",
    }  # fmt: skip
    for column in ("not_selected", "filtered", "duplicates"):
        assert any(ledger[column] for ledger in ledgers), column


def test_inputs_are_committed_and_small(pytestconfig: pytest.Config) -> None:
    from golden.cases import INPUTS, ROOT

    sizes = {path: path.stat().st_size for path in Path(ROOT, INPUTS).rglob("*") if path.is_file()}
    assert sum(sizes.values()) < 600_000
