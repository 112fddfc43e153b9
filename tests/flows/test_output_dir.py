"""Output folders that are not ours, cannot be written, or run full."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Cli, small_config, write_config
from support import chat, published_digests, write_jsonl

from tasks.outputs.validate import validate_path

ROWS = [chat(f"question {number} " * 20, f"answer {number} " * 20) for number in range(60)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "chats.jsonl", ROWS)


def _file(path: Path) -> None:
    path.write_text("mine")


def _folder(path: Path) -> None:
    path.mkdir()
    (path / "data.bin").write_text("mine")


def _link(path: Path) -> None:
    path.symlink_to("elsewhere/of/mine")


def _content(folder: Path) -> dict[str, str]:
    """Every name below `folder`, with what it holds or points to."""
    return {
        path.relative_to(folder).as_posix(): str(path.readlink()) if path.is_symlink() else path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


@pytest.mark.parametrize("make", [_file, _folder, _link])
@pytest.mark.parametrize("name", ["blend.json", "splits", "latest", "runs", "stages"])
def test_what_somebody_else_put_there_is_not_touched(
    cli: Cli,
    configured: Callable[..., Path],
    tmp_path: Path,
    source: Path,
    name: str,
    make: Callable[[Path], None],
) -> None:
    output_dir = tmp_path / "out"
    output_dir.mkdir()
    make(output_dir / name)
    before = _content(output_dir)
    outcome = cli("pack-sft", configured(source))
    assert outcome.code == 2
    assert outcome.message.startswith(f"[foreign_output] {output_dir / name}: {name!r} already exists")
    assert _content(output_dir) == before


def test_other_files_beside_ours_may_stay(
    cli: Cli, configured: Callable[..., Path], tmp_path: Path, source: Path
) -> None:
    (tmp_path / "out").mkdir()
    _file(tmp_path / "out" / "README.md")
    assert cli("pack-sft", configured(source)).code == 0
    assert (tmp_path / "out" / "README.md").read_text() == "mine"


@pytest.mark.parametrize("marker", ['{"flow": "sample-corpus"}', "[]", "{", "\udcff"])
def test_another_flows_folder(
    cli: Cli, configured: Callable[..., Path], tmp_path: Path, source: Path, marker: str
) -> None:
    output_dir = tmp_path / "out"
    output_dir.mkdir()
    (output_dir / ".gristmill.json").write_bytes(os.fsencode(marker))
    outcome = cli("pack-sft", configured(source))
    assert (outcome.code, outcome.message.split("]")[0]) == (2, "[foreign_output")
    assert [path.name for path in output_dir.iterdir()] == [".gristmill.json"]
    if "sample-corpus" in marker:
        assert (
            "this folder holds runs of 'sample-corpus'; give 'pack-sft' a folder of its own"
            in outcome.message
        )


def test_input_inside_the_output(cli: Cli, configured: Callable[..., Path], tmp_path: Path) -> None:
    # The folder of inputs holds the output folder: the second run would read the first one's shards as chats.
    source = write_jsonl(tmp_path / "a.jsonl", ROWS[:3]).parent
    config = configured(source)
    assert cli("pack-sft", config).code == 0
    digests = published_digests(tmp_path / "out" / "latest")
    outcome = cli("pack-sft", config)
    assert (outcome.code, outcome.message.split("]")[0]) == (2, "[input_is_output")
    assert published_digests(tmp_path / "out" / "latest") == digests


@pytest.mark.parametrize(
    ("output_dir", "exit_code"),
    # Not even root creates anything in these two.
    [("/proc/gristmill", 1), ("/sys/gristmill", 1), ("/dev/null", 2), ("/dev/null/out", 1), ("a\0b", 2)],
)
def test_a_place_that_cannot_be_written(
    cli: Cli, tmp_path: Path, source: Path, small_tokenizer: Path, output_dir: str, exit_code: int
) -> None:
    raw = small_config(tmp_path, source, small_tokenizer) | {"output_dir": output_dir}
    outcome = cli("pack-sft", write_config(tmp_path / "config.yaml", raw))
    assert outcome.code == exit_code
    if exit_code == 1:
        assert outcome.message.startswith(f"[storage] {output_dir}: cannot create the output folder: ")


# One process meets a disk that is full after so many bytes a file; it runs the command line for each limit.
_FULL_DISK = """
import json, resource, sys, warnings
import flows.cli.launch
from commands import run_serially
from flows.cli.main import main
from tasks.sft.chat.tokenizer import _load

warnings.simplefilter("error")
flows.cli.launch.run_flow = run_serially
configs, tokenizer = json.load(sys.stdin)
_load(tokenizer)
for limit, config in configs:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    print(limit, main(["pack-sft", config]), flush=True)
    print("--", file=sys.stderr, flush=True)
"""


def test_a_full_disk(cli: Cli, tmp_path: Path, source: Path, small_tokenizer: Path) -> None:
    """Whatever file does not fit any more: one message, no torn file, the published run as it was."""
    limits = (0, 10, 60, 400, 1_000, 4_000, 10_000, 20_000)
    configs = []
    for limit in limits:
        raw = small_config(tmp_path / str(limit), source, small_tokenizer, storage={"compression": "none"})
        config = write_config(tmp_path / f"{limit}.yaml", raw)
        if limit > 60:
            assert cli("pack-sft", config).code == 0
        # A run over the same inputs that has everything to do again.
        configs.append((limit, str(write_config(config, raw | {"train_on": "all"}))))
    before = {limit: published_digests(tmp_path / str(limit) / "latest") for limit in limits[3:]}

    done = subprocess.run(
        [sys.executable, "-c", _FULL_DISK],
        input=json.dumps([configs, str(small_tokenizer)]),
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
    )
    assert [line.split() for line in done.stdout.splitlines()] == [[str(limit), "1"] for limit in limits]
    messages = [part.splitlines() for part in done.stderr.split("--\n")[:-1]]
    for limit, lines in zip(limits, messages, strict=True):
        (message,) = [line for line in lines if line.startswith("gristmill: ")]
        assert (
            message.startswith(f"gristmill: [storage] {tmp_path / str(limit)}")
            and "File too large" in message
        )
        assert "Traceback" not in "".join(lines) and "ignored" not in "".join(lines), lines
        assert not list((tmp_path / str(limit)).rglob(".tmp-*"))
    for limit, digests in before.items():
        assert published_digests(tmp_path / str(limit) / "latest") == digests
        assert validate_path(tmp_path / str(limit)).ok
