"""Small pack-sft configurations, and what a command of the command line left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import mill_serially

from schemas.run import RunManifest
from schemas.sft import PackSftConfig
from tasks.run.receipts import Verify


@dataclass(frozen=True)
class Outcome:
    """The exit code of a command, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def message(self) -> str:
        """The one error message; there must be nothing else."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("gristmill: [") and "[internal]" not in lines[0], lines[0]
        return lines[0].removeprefix("gristmill: ")


Cli = Callable[..., Outcome]


def small_config(
    output_dir: Path, source: Path, tokenizer: Path, /, *, template: str | None = None, **changes: Any
) -> dict[str, Any]:
    """A pack-sft configuration; `changes` replace top-level keys."""
    raw: dict[str, Any] = {
        "output_dir": str(output_dir),
        "datasets": [{"name": "chats", "path": str(source)}],
        "tokenizer": {"path": str(tokenizer), "chat_template": template},
        "pack": {"size": 512},
        "splits": {"train": 1.0, "valid": 0.0, "test": 0.0},
    }
    return {**raw, **changes}


def write_config(path: Path, config: dict[str, Any]) -> Path:
    """A configuration file; JSON is YAML."""
    path.write_text(json.dumps(config))
    return path


def run_serially(
    package: str,
    module: str,
    runner: str,
    workers: int,
    address: str | None,
    *,
    config: PackSftConfig,
    verify: Verify,
    force: bool,
) -> RunManifest:
    """`flows.cli.launch.run_flow` with the steps of pack-sft run one after the other, without Prefect's task runs."""
    assert module == "pack_sft"
    return mill_serially(config, verify)[0]
