"""Inputs with many small tasks, the command line in a process of its own, and what a run leaves on disk."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from support import chat, write_jsonl

ROOT = Path(__file__).resolve().parents[1]

_WORDS = [
    "def",
    "class",
    "return",
    "import",
    "value",
    "shard",
    "token",
    "mask",
    "row",
    "file",
    "pack",
    "bin",
    "split",
    "plan",
    "write",
    "read",
    "the",
    "a",
    "of",
    "to",
    "and",
    "in",
    "is",
    "for",
    "with",
    "numbers",
    "17",
    "2048",
    "3.14",
    "café",
    "数据",
    ":=",
    "==",
    "()",
    "[]",
    "{}",
    "while",
    "else",
    "try",
    "except",
    "yield",
]
_FAULTS = (
    b'{"messages": [',
    {"messages": []},
    {"text": "no chat"},
    {"messages": [{"role": "x", "content": ""}]},
)


def make_inputs(folder: Path, big_files: int = 2, order: int = 1) -> Path:
    """Two data sets: `small`, three files with rejects and duplicates; `big`, files of 4.5 MB, five parts each.

    Args:
        folder: where `small/` and `big/` go.
        big_files: number of files in `big`.
        order: -1 creates the same files in the opposite order, which other listings show.
    """
    files: dict[str, list[Any]] = {}
    for index, name in enumerate(("b.jsonl", "a.jsonl", "nested/c.jsonl")):
        rng = random.Random(index)
        rows: list[Any] = [_chat(rng) for _ in range(120)]
        rows[7::40] = [rows[3]] * len(rows[7::40])
        rows[9::30] = _FAULTS
        files[f"small/{name}"] = rows
    for index in range(big_files):
        rng = random.Random(100 + index)
        # A field nobody reads makes the file big, so that it is cut, and costs no tokens.
        files[f"big/{index}.jsonl"] = [_chat(rng) | {"note": "x" * 10_000} for _ in range(450)]
    for name in list(files)[::order]:
        write_jsonl(folder / name, files[name])
    return folder


def _chat(rng: random.Random) -> dict[str, Any]:
    texts = (" ".join(rng.choices(_WORDS, k=rng.randint(2, 70))) for _ in range(2 * rng.randint(1, 2)))
    return chat(*texts)


def raw_config(
    output_dir: Path | str, inputs: Path | str, tokenizer: Path | str, **changes: Any
) -> dict[str, Any]:
    """A configuration of some 40 tasks; `changes` replace top-level keys."""
    return {
        "output_dir": str(output_dir),
        "datasets": [
            {"name": "small", "path": f"{inputs}/small", "weight": 2},
            {"name": "big", "path": f"{inputs}/big/*.jsonl"},
        ],
        "tokenizer": {"path": str(tokenizer)},
        "pack": {"size": 256},
        "storage": {"shard_tokens": 12_000, "row_group_size": 16},
        "splits": {"train": 0.8, "valid": 0.1, "test": 0.1},
        "deduplicate": True,
        "workers": 2,
        **changes,
    }


def save_config(path: Path, raw: Mapping[str, Any]) -> Path:
    path.write_text(json.dumps(raw))
    return path


def environment(**variables: str) -> dict[str, str]:
    """The environment of a command: this project first on the path, whatever the working directory."""
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
    return {**os.environ, "PYTHONPATH": path, **variables}


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "flows", *map(str, arguments)]


def run_cli(*arguments: str | Path, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m flows` to its end."""
    return subprocess.run(
        command(*arguments),
        cwd=cwd,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=120,
    )


def succeed(*arguments: str | Path, cwd: Path = ROOT, **variables: str) -> dict[str, Any]:
    """Run a command with `--json`; what it printed last."""
    done = run_cli(*arguments, "--json", cwd=cwd, **variables)
    assert done.returncode == 0, done.stderr
    return last_json(done)


def last_json(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def clone(source: Path, target: Path) -> Path:
    """A copy in which hard links are hard links again."""
    subprocess.run(["cp", "-a", source, target], check=True)
    return target


def stage_files(output_dir: Path, pattern: str = "*/**/*") -> dict[str, tuple[int, int]]:
    """Inode and mtime of every file the stages hold, receipts included; locks are left out."""
    stages = output_dir / "stages"
    return {
        path.relative_to(stages).as_posix(): (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in stages.glob(pattern)
        if path.is_file() and not path.name.endswith(".lock")
    }


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> set[str]:
    """Names that are new, gone or different."""
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def temporary_files(folder: Path) -> Iterator[Path]:
    return folder.rglob(".tmp-*")
