"""Where the command line says the report is, and that a run is whole without it."""

from __future__ import annotations

import json
from pathlib import Path

from commands import Cli, small_config, write_config
from support import chat, write_jsonl

from tasks.outputs.validate import validate_path


def test_the_summary_names_the_report(cli: Cli, small_tokenizer: Path, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [chat(f"ask {i}", f"answer {i}") for i in range(20)])
    config = write_config(tmp_path / "c.yaml", small_config(tmp_path / "out", source, small_tokenizer))

    told = [json.loads(cli("pack-sft", config, "--json").out.splitlines()[-1]) for _ in range(2)]
    printed = cli("pack-sft", config)

    page = Path(told[0]["run_dir"]) / "report.html"
    assert [one["cached"] for one in told] == [False, True]
    assert [one["report"] for one in told] == [str(page)] * 2
    assert f"  report     {page}" in printed.out.splitlines()
    assert "report.html" not in {output["path"] for output in told[0]["outputs"]}

    # The page is no output, but it belongs to the run: without it, the run is made whole again.
    page.unlink()
    assert not validate_path(tmp_path / "out").ok
    again = json.loads(cli("pack-sft", config, "--json").out.splitlines()[-1])
    assert (again["cached"], again["report"]) == (False, str(page))
    assert validate_path(tmp_path / "out").ok
