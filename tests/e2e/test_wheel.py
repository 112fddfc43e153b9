"""The wheel, installed in an environment of its own and used from an empty folder, away from the checkout.

Its dependencies are those that the tests run with, found through a path file, without network. With
`GRISTMILL_TEST_INSTALL=registry`, as CI sets it, they are installed too, in the versions of the lock file.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from local import Local
from supply.lock import requirements

from flows.cli.registry import FLOWS
from tasks.server.control import down
from tasks.server.processes import marked
from tasks.server.state import STATE_VARIABLE, State

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    "pyproject.toml", "README.md", "LICENSE", "gristmill_command.py", "schemas", "tasks", "flows", "deployments",
)  # fmt: skip


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, an empty folder to run in, and the state folder of its server."""

    environment: Path
    folder: Path
    state: State

    def run(self, *command: str) -> str:
        """What a command of the environment prints; it must succeed."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "PYTHON"))
        }
        environ = kept | {
            "PATH": f"{self.environment / 'bin'}:/usr/bin:/bin",
            STATE_VARIABLE: str(self.state.folder),
        }
        done = subprocess.run(
            command, cwd=self.folder, env=environ, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def python(self, code: str) -> str:
        return self.run("python", "-c", code)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    folder = tmp_path_factory.mktemp("wheel")
    made = Installed(folder / "environment", folder / "empty", State(folder / "state"))
    made.folder.mkdir()
    install(build(folder), made.environment)
    try:
        yield made
    finally:
        down(made.state)


def build(folder: Path) -> Path:
    """The wheel of a copy of the sources: what an earlier build left in the checkout stays out of it."""
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source)
    pip("wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", folder, source)
    [wheel] = folder.glob("gristmill-*.whl")
    return wheel


def install(wheel: Path, environment: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    if os.environ.get("GRISTMILL_TEST_INSTALL") == "registry":
        # Without the digests, which would be asked of the wheel as well.
        versions = environment.parent / "versions.txt"
        versions.write_text("\n".join(map(str, requirements())))
        pip("--python", python, "install", "--constraint", versions, f"{wheel}[sft,probes]")
        return
    pip("--python", python, "install", "--no-deps", "--no-index", wheel)
    # A line of a path file adds a folder, but not what that folder's own path files add: the checkout.
    [packages] = (environment / "lib").glob("python*/site-packages")
    paths = {sysconfig.get_paths()[name] for name in ("purelib", "platlib")}
    (packages / "borrowed.pth").write_text("\n".join(sorted(paths)))


def pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, arguments)]
    # Without the checkout on the path: what a build left there would pass for an installed gristmill.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_everything_is_imported_from_the_wheel(installed: Installed) -> None:
    code = (
        "import flows, schemas, tasks, pathlib;"
        "print(*(pathlib.Path(m.__file__).parent for m in (flows, schemas, tasks)), sep='\\n')"
    )
    folders = [Path(line) for line in installed.python(code).splitlines()]
    assert len(folders) == 3
    for folder in folders:
        assert folder.is_relative_to(installed.environment), folder
        assert (folder / "py.typed").is_file()


def test_the_version_and_the_examples_are_there(installed: Installed) -> None:
    assert installed.run("gristmill", "--version").startswith("gristmill ")
    for entry in FLOWS:
        example = (ROOT / "deployments" / f"{entry.module}.yaml").read_text()
        assert installed.run("gristmill", "example", entry.name) == example


def test_up_a_flow_a_form_and_down(installed: Installed) -> None:
    local = Local.of(installed.run("gristmill", "up", "--json"))
    assert local.status["ok"] and len(local.status["deployments"]) == 10

    # The example, on what `up` wrote for the forms; the run is recorded by that server.
    inputs = installed.state.files / "demo-output" / "inputs"
    (installed.folder / "my_chats.yaml").write_text(installed.run("gristmill", "example", "pack-sft"))
    changes = [f"datasets[0].path={inputs}/docstrings.jsonl", f"tokenizer.path={inputs}/tokenizer"]
    options = [part for change in changes for part in ("--set", change)]
    printed = installed.run("gristmill", "pack-sft", "my_chats.yaml", *options, "--json")
    run = json.loads(printed.splitlines()[-1])
    assert run["stats"]["rejected"] == {} and run["stats"]["rows_out"] > 1_000
    assert "valid" in installed.run("gristmill", "validate", "runs-output/sft").splitlines()[-1]
    code = "from tasks.sft.datasets import create_sft_dataset as c; print(len(c('runs-output/sft', split='train')))"
    assert int(installed.python(code)) > 10
    assert len(local.call("flow_runs/filter", {})) == 1

    # A form, in the worker's hands: it imports the wheel too, though a folder of its files has one of our names.
    (installed.state.files / "tasks").mkdir()
    ended = local.ended(local.start("build-probe-rows"))
    assert ended["state_name"] == "Completed", ended["state"]["message"]

    assert "10, no schedule is on" in installed.run("gristmill", "status")
    assert "stopped" in installed.run("gristmill", "down")
    assert marked(str(installed.state.folder)) == []
