"""The command line in this process, without a Prefect server."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Cli, Outcome, run_serially, small_config, write_config


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """`gristmill ARGUMENTS`, with `run_serially` in place of Prefect."""
    monkeypatch.setattr("flows.launch.run_flow", run_serially)
    # Progress goes to whatever stderr was when Prefect was imported, which pytest has closed since.
    monkeypatch.setattr(logging.getLogger("gristmill"), "propagate", False)
    from flows.cli import main

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Outcome(code, printed.out, printed.err)

    return run


@pytest.fixture
def configured(tmp_path: Path, small_tokenizer: Path) -> Callable[..., Path]:
    """Writes `config.yaml` for a source, with `tmp_path/out` as output folder."""

    def write(source: Path, **changes: Any) -> Path:
        config = small_config(tmp_path / "out", source, small_tokenizer, **changes)
        return write_config(tmp_path / "config.yaml", config)

    return write
