"""Artifacts on a real server: what a run's page shows, also when the run is held back."""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from prefect_server import ask
from support import chat, write_jsonl

from flows.cli.launch import run_flow
from schemas.errors import IntegrityError
from schemas.sft import PackSftConfig
from tasks.run.receipts import Verify


class Run:
    """One flow run as the server tells it.

    Attributes:
        state: the flow run's last state.
        artifacts: by key.
    """

    def __init__(self, api: str, newest: dict[str, Any]) -> None:
        self.state: dict[str, Any] = newest["state"]
        wanted = {"artifacts": {"flow_run_id": {"any_": [newest["id"]]}}}
        self.artifacts = {artifact["key"]: artifact for artifact in _ask(api, "artifacts", wanted)}

    def text(self, key: str) -> str:
        return str(self.artifacts[key]["data"])


def _ask(api: str, what: str, query: dict[str, Any]) -> Any:
    return ask(f"{api}/{what}/filter", query)


def newest_run(api: str) -> Run:
    [newest] = _ask(api, "flow_runs", {"sort": "START_TIME_DESC", "limit": 1})
    return Run(api, newest)


def rows_of(markdown: str, title: str) -> list[list[str]]:
    """The body of the table under a heading."""
    section = markdown.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def run(config: dict[str, Any]) -> None:
    parsed = PackSftConfig.parse(config)
    run_flow("flows", "pack_sft", "threads", 2, config=parsed, verify=Verify.SIZE, force=False)


@pytest.fixture(scope="module")
def told(prefect_api: str, small_tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """A first run, the same again, and one whose input drifted."""
    root = tmp_path_factory.mktemp("artifacts")
    rows: list[Any] = [chat(f"ask {i}", f"answer {i} <b>|`x`") for i in range(40)]
    source = write_jsonl(root / "a.jsonl", [*rows, b"{"])
    config = {
        "output_dir": str(root / "out"),
        "datasets": [{"name": "chats", "path": str(source)}],
        "tokenizer": {"path": str(small_tokenizer)},
        "pack": {"size": 128},
        "splits": {"train": 1.0, "valid": 0.0, "test": 0.0},
        "alarms": {"max_row_change": 0.5},
        "max_reject_fraction": 0.5,
    }
    seen = {}
    for name in ("first", "again", "drifted"):
        if name == "drifted":
            write_jsonl(source, rows * 3)
        try:
            run(config)
        except IntegrityError as error:
            assert (name, error.code) == ("drifted", "drift")
        seen[name] = newest_run(prefect_api)
    return seen


def test_a_run_shows_its_ledger_rejects_outputs_and_plots(told: dict[str, Run]) -> None:
    first = told["first"]
    summary = first.text("pack-sft-summary")

    assert first.state["type"] == "COMPLETED"
    assert rows_of(summary, "Row ledger")[:2] == [["read", "41", "100%"], ["used", "40", "97.6%"]]
    assert rows_of(summary, "Rejected rows by reason") == [["invalid_json", "1", "2.4%"]]
    assert any(row[0].startswith("datasets/chats") for row in rows_of(summary, "Outputs"))
    plots = re.findall(r"!\[([^\]]*)\]\(data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)\)", summary)
    assert [title for title, _ in plots] == ["Sequence lengths", "Fill of the bins", "Where rows went"]
    for _, data in plots:
        ET.fromstring(base64.b64decode(data))  # noqa: S314 - our own output
    assert "```mermaid\nflowchart LR\n" in summary


def test_the_page_is_linked_and_there(told: dict[str, Run]) -> None:
    found = re.search(r"file://(\S+?report\.html)", told["first"].text("pack-sft-report"))

    assert found is not None
    page = Path(found[1])
    assert page.is_file() and page.parent.parent.name == "runs"


def test_sampled_bins_mark_what_is_trained(told: dict[str, Run]) -> None:
    lines = told["first"].text("pack-sft-bins").splitlines()

    trained = [line for line in lines if line.startswith("┃ ")]
    assert trained
    assert all(re.fullmatch(r"┃ answer \d+ <b>\|`x`<\|im_end\|>", line) for line in trained)
    assert any(line.startswith("  ask ") for line in lines)


def test_what_was_found_done_is_told_apart(told: dict[str, Run]) -> None:
    for name, executed, cached in (("first", "1", "0"), ("again", "0", "1")):
        reuse = rows_of(told[name].text("pack-sft-summary"), "Tasks run and reused")
        assert reuse == [
            [step, "1", executed, cached] for step in ("screen", "tokenize", "cut", "pack", "validate")
        ]


def test_a_run_that_drifted_fails_with_the_reason_and_shows_it(told: dict[str, Run]) -> None:
    drifted = told["drifted"]
    summary = drifted.text("pack-sft-summary")

    assert drifted.state["type"] == "FAILED"
    message = drifted.state["message"]
    assert "[drift] alarms.max_row_change: rows in went from 41 to 120 (192.7%" in message
    assert "\n" not in message
    assert "this run was not published" in summary
    verdicts = [row[-1] for row in rows_of(summary, "Compared with the last published run")]
    assert verdicts == ["OUT OF BOUNDS", "OUT OF BOUNDS", "within bounds", "within bounds"]
