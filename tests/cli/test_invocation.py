"""What programs print as a command runs where it is printed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flows.cli.invocation import command_line, this_command


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`.venv/bin` below the working directory, with an interpreter, that is not on the PATH."""
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    for name in ("python", "python3"):
        (folder / name).symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(folder / "python3"))
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "flows" / "__main__.py")])
    monkeypatch.setenv("PATH", "/usr/bin")
    return folder


def install(folder: Path) -> Path:
    script = folder / "gristmill"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    return script


def test_the_name_where_the_environment_is_activated(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(environment)
    monkeypatch.setenv("PATH", f"{environment}:/usr/bin")
    assert command_line("validate", Path("my data")) == "gristmill validate 'my data'"


def test_the_path_where_it_is_not(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(environment)
    assert this_command() == ".venv/bin/gristmill"
    monkeypatch.chdir(environment)
    assert this_command() == "./gristmill"
    monkeypatch.chdir("/")
    assert this_command().endswith("/.venv/bin/gristmill")


def test_another_gristmill_on_the_path_is_not_this_one(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(environment)
    other = tmp_path / "other"
    other.mkdir()
    install(other)
    monkeypatch.setenv("PATH", str(other))
    assert this_command() == ".venv/bin/gristmill"


def test_a_script_that_does_not_lie_beside_the_interpreter(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = install(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert this_command() == "gristmill"


def test_the_interpreter_where_nothing_is_installed(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert this_command() == ".venv/bin/python -m flows"
    monkeypatch.setenv("PATH", str(environment))
    assert this_command() == "python -m flows"
