"""Before anything runs: the version, the examples, and folders of others that have our names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from commands import Cli

from flows.cli.registry import FLOWS, FlowEntry

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(sys.executable).with_name("gristmill")


def test_the_version_is_that_of_the_project(tmp_path: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert said(tmp_path / "nothing", SCRIPT, "--version") == (0, f"gristmill {version}")
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"## [{version}] - 2" in changelog


@pytest.mark.parametrize("entry", FLOWS, ids=lambda entry: entry.name)
def test_an_example_is_a_configuration(cli: Cli, entry: FlowEntry) -> None:
    done = cli("example", entry.name)
    assert done.code == 0
    entry.parse(yaml.safe_load(done.out))
    assert json.loads(cli("example", entry.name, "--json").out)["example"].rstrip() == done.out.rstrip()


def test_an_unknown_example_names_those_there_are(cli: Cli) -> None:
    done = cli("example", "pack")
    assert done.code == 2 and all(entry.name in done.message for entry in FLOWS)


@pytest.fixture(params=["package", "folder", "module"])
def shadow(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> Path:
    """Something of that name in a folder of its own."""
    if request.param == "module":
        (tmp_path / f"{name}.py").touch()
        return tmp_path / f"{name}.py"
    (tmp_path / name).mkdir()
    if request.param == "package":
        (tmp_path / name / "__init__.py").touch()
    return tmp_path / name


def said(shadow: Path, *command: str | Path, **environ: str) -> tuple[int, str]:
    """Exit code and last line of a command run where the shadow lies."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=shadow.parent, env=kept | environ, capture_output=True, text=True, check=False
    )
    return done.returncode, (done.stderr or done.stdout).strip().splitlines()[-1]


@pytest.mark.parametrize("name", ["tasks", "schemas"])
def test_a_folder_that_hides_ours_is_named(shadow: Path, name: str) -> None:
    code, line = said(shadow, sys.executable, "-m", "flows", "status")
    assert (
        code
        and f"{shadow} shadows Gristmill's own" in line.replace("/__init__.py", "")
        and "start `gristmill`" in line
    )


@pytest.mark.parametrize("name", ["tasks", "schemas", "flows"])
def test_the_command_is_not_misled_by_where_it_starts(shadow: Path, name: str) -> None:
    code, line = said(shadow, SCRIPT, "--version")
    assert code == 0 and line.startswith("gristmill ")
    code, line = said(shadow, SCRIPT, "--version", PYTHONPATH=".")
    assert code == 2 and line.startswith(f"gristmill: [shadowed] {shadow}") and "PYTHONPATH" in line


@pytest.mark.parametrize("name", ["schemas"])
def test_a_trainer_whose_schemas_hide_ours_is_told(shadow: Path, name: str) -> None:
    code, line = said(shadow, sys.executable, "-c", "import tasks.sft.datasets")
    assert code == 1 and f"ImportError: {shadow}" in line
