"""What scripts read is strict JSON: every line that a command prints with `--json`, every JSON file of a run.

`NaN` and `Infinity` are no JSON, though Python writes and reads them; jq and browsers do not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import Cli, write_config
from contract.flows_under_test import BuildProbeRows, PackSft, SampleCorpus, TrainTokenizer
from contract.suite import Workload
from support import mill_of

from flows.cli.plain import print_json
from flows.cli.registry import FLOWS
from tasks.run.publish import json_document

WORKS = (PackSft, SampleCorpus, TrainTokenizer, BuildProbeRows)


def strict(text: str | bytes) -> Any:
    def refuse(name: str) -> NoReturn:
        raise AssertionError(f"{name} is not JSON: {text[:300]!r}")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture
def printed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs a command with `--json`, each flow without a server, and reads the one line that it prints."""

    def serially(package: str, module: str, *rest: Any, config: Any, verify: Any, force: bool) -> Any:
        [entry] = [entry for entry in FLOWS if entry.module == module]
        return mill_of(entry, config, verify)[0]

    monkeypatch.setattr("flows.cli.launch.run_flow", serially)

    def run(*arguments: object, code: int = 0) -> Any:
        outcome = cli(*arguments, "--json")
        assert outcome.code == code, outcome.err
        [line] = outcome.out.splitlines()
        return strict(line)

    return run


@pytest.mark.parametrize("of", WORKS, ids=lambda of: of.flow)
def test_commands_and_files_of_every_flow(
    of: type[Workload], printed: Callable[..., Any], tmp_path: Path, small_tokenizer: Path
) -> None:
    work = of()
    work.tokenizer = small_tokenizer
    work.write(tmp_path / "in", bad_rows=2)
    out = tmp_path / "out"
    config = write_config(tmp_path / "config.yaml", work.raw(tmp_path / "in", out))
    run = printed(work.flow, config)
    assert printed(work.flow, config)["run_hash"] == run["run_hash"]
    assert printed("validate", out)["ok"]
    for options in ((), ("--rows", 2)):
        assert printed("inspect", out, *options)
    assert printed("inspect", out / "latest" / "rejects", "--rows", 3)
    # A tokenizer has no rows.
    if of is not TrainTokenizer:
        assert printed("inspect", out, "--sql", "select '-inf'::float")["rows"] == [[None]]
    assert printed("runs", out)["runs"]
    assert printed("prune", out, "--dry-run") and printed("prune", out)
    files = [*out.rglob("*.json")]
    assert {"manifest.json", "config.json", "inputs.json"} <= {path.name for path in files}
    assert any(path.parent.name == "receipts" for path in files)
    for path in files:
        strict(path.read_bytes())
    # A manifest that says it all the same, as Python's own writer would.
    manifest = (out / "latest" / "manifest.json").resolve()
    fields = json.loads(manifest.read_bytes())
    manifest.write_text(json.dumps({**fields, "statistics": {"share": math.nan}}))
    assert not printed("validate", out, code=3)["ok"]
    assert printed("inspect", out, code=3)["error"]["code"] == "bad_manifest"
    # It is none of the runs that are complete.
    assert printed("runs", out) == {"runs": [], "damaged": [manifest.parent.name]}


@pytest.mark.parametrize("form", ["parquet", "npy", "memmap"])
def test_a_conversion_and_what_it_writes(
    form: str, printed: Callable[..., Any], tmp_path: Path, small_tokenizer: Path
) -> None:
    work = PackSft()
    work.tokenizer = small_tokenizer
    work.write(tmp_path / "in")
    mill_of("pack-sft", work.config(tmp_path / "in", tmp_path / "out"))
    assert printed("convert", tmp_path / "out", tmp_path / "other", "--to", form)
    assert printed("inspect", tmp_path / "other", "--rows", 1)
    assert printed("validate", tmp_path / "other")["ok"]
    for path in (tmp_path / "other").rglob("*.json"):
        strict(path.read_bytes())


def test_numbers_that_are_none_in_the_files_of_others(printed: Callable[..., Any], tmp_path: Path) -> None:
    numbers = [math.nan, math.inf, -math.inf, 1.5]
    words = ["a", "b", "c", "d"]
    columns = {"text": words, "source_dataset": words, "source_bucket": words, "score": numbers}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert printed("inspect", tmp_path, "--rows", 4)
    answer = printed("inspect", tmp_path / "a.parquet", "--sql", "select score from documents order by text")
    assert answer["rows"] == [[None], [None], [None], [1.5]]


OTHERS = (
    ("status",),
    ("down",),
    ("example", "pack-sft"),
    ("inspect", "no\0where"),
    ("runs", "nowhere"),
    ("pack-sft", "nowhere.yaml"),
    ("validate", "1e999"),
)


@pytest.mark.parametrize("arguments", OTHERS)
def test_other_commands_and_errors(
    arguments: tuple[str, ...], cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRISTMILL_STATE_DIR", str(tmp_path))
    [line] = cli(*arguments, "--json").out.splitlines()
    assert strict(line)


def test_what_is_not_a_number_is_null_in_print_and_refused_in_files(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_json({"a": [math.nan, {"b": (math.inf,)}], "c": -0.5})
    assert strict(capsys.readouterr().out) == {"a": [None, {"b": [None]}], "c": -0.5}
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_document({"a": math.nan})
