"""A cached re-run: the wall time of the command when there is nothing to do.

    python -m benchmarks.cached  # half a minute

A run with 200 shards is made first, in this process. The command is then timed as a user sees it, interpreter
start included, and must not import Prefect.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from benchmarks.common import deepseek_folder, in_turn, median, pack_sft_in_this_thread, report
from benchmarks.tokenizing import TEMPLATES, chat_rows

SHARDS, BINS_PER_SHARD, SIZE = 200, 2, 512
REPEATS = 7
TARGET_S = 0.3
HEAVY = ("prefect", "transformers", "pyarrow", "numpy")


def write_source(path: Path, tokens: int) -> None:
    """Chats of at least so many tokens; GSM8K's have about 160 each."""
    rows = chat_rows()
    with path.open("wb") as file:
        for _ in range(tokens // 150):
            file.write(orjson.dumps(next(rows)) + b"\n")


def run_config(folder: Path) -> dict[str, Any]:
    # A shard is closed by the bin that brings it to `shard_tokens`: two bins of 512 hold about 1,024.
    source = folder / "chats.jsonl"
    write_source(source, SHARDS * BINS_PER_SHARD * SIZE)
    return {
        "output_dir": str(folder / "out"),
        "datasets": [{"name": "chats", "path": str(source)}],
        "tokenizer": {"path": str(deepseek_folder()), "chat_template": TEMPLATES["generation blocks"]},
        "pack": {"size": SIZE},
        "storage": {"shard_tokens": BINS_PER_SHARD * SIZE - SIZE // 2},
        "splits": {"train": 1.0, "valid": 0.0, "test": 0.0},
    }


def command(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "flows", *arguments], check=True, stdout=subprocess.DEVNULL)


def heavy_imports(arguments: Sequence[str]) -> list[str]:
    """Which heavy packages a command imports, in a process of its own."""
    code = (
        "import json, sys; from flows.cli.main import main; main(sys.argv[1:]); "
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], check=True, stdout=subprocess.PIPE, text=True
    )
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    folder = Path(tempfile.mkdtemp(prefix="gristmill-bench-"))
    try:
        raw = run_config(folder)
        manifest = pack_sft_in_this_thread(raw)
        config = folder / "config.yaml"
        config.write_text(json.dumps(raw))
        imported = heavy_imports(["pack-sft", str(config)])
        assert "prefect" not in imported, f"the cached run imports {imported}"
        times = in_turn(
            REPEATS,
            cached=lambda: command("pack-sft", str(config)),
            digests=lambda: command("pack-sft", str(config), "--verify", "sha256"),
            help=lambda: command("--help"),
            python=lambda: subprocess.run([sys.executable, "-c", ""], check=True),
        )
        receipts = len([*(folder / "out" / "stages").glob("*/receipts/*.json")])
        shards = sum(record.path.endswith(".parquet") for record in manifest.outputs)
    finally:
        shutil.rmtree(folder)
    cached, digests, usage, bare = (median(runs).wall for runs in times.values())
    report("published shards", f"{shards}", f">= {SHARDS}", shards >= SHARDS)
    report("receipts", f"{receipts}")
    report("heavy packages imported by a cached run", ", ".join(imported) or "none")
    report("cached run, sizes verified", f"{cached:.3f} s", f"<= {TARGET_S} s", cached <= TARGET_S)
    report("cached run, digests verified", f"{digests:.3f} s")
    report("--help", f"{usage:.3f} s")
    report("bare interpreter", f"{bare:.3f} s")


if __name__ == "__main__":
    main()
