"""Peak memory of pack-sft: ten times the conversations, the same memory.

    python -m benchmarks.memory  # about six minutes, 4 GB in the folder for temporary files

Each run is a process of its own that does every step of pack-sft, one after the other. The peak is that of the
resident set, pages of mapped files included. Prefect is imported, as in every run, but runs no server; what the
imports alone take is printed, because the ratio contains it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import orjson

from benchmarks.common import deepseek_folder, pack_sft_in_this_thread, peak_megabytes, report
from benchmarks.tokenizing import TEMPLATES, chat_rows

SMALL, LARGE = 50_000, 500_000
TARGET = 1.25


def write_rows(path: Path, rows: int) -> None:
    """Chats of GSM8K's, written as they come."""
    with path.open("wb") as file:
        for row in itertools.islice(chat_rows(), rows):
            file.write(orjson.dumps(row) + b"\n")


def peak_of_run(folder: Path, rows: int) -> dict[str, float]:
    """Run pack-sft over `rows` conversations in a fresh process; its peak and the peak of its imports."""
    source = folder / f"{rows}.jsonl"
    # Generated elsewhere, so that nothing of it is in the process that is measured.
    write_rows(source, rows)
    config = {
        "output_dir": str(folder / f"out-{rows}"),
        "datasets": [{"name": "chats", "path": str(source)}],
        "tokenizer": {"path": str(deepseek_folder()), "chat_template": TEMPLATES["generation blocks"]},
    }
    command = [sys.executable, "-m", "benchmarks.memory", "--measure", json.dumps(config)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    shutil.rmtree(folder / f"out-{rows}")
    source.unlink()
    peaks: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return peaks


def measure(config: str) -> None:
    """In the process of its own: run, print the peaks in MB as JSON."""
    import flows.pack_sft  # noqa: F401 - imported for its memory
    from schemas.sft import TokenizerConfig
    from tasks.sft.chat.tokenizer import load_tokenizer
    from tasks.sft.chat.tokenizer_source import find_tokenizer

    raw = json.loads(config)
    tokenizer = TokenizerConfig.parse(raw["tokenizer"])
    load_tokenizer(find_tokenizer(tokenizer), tokenizer)
    before = peak_megabytes()
    pack_sft_in_this_thread(raw)
    print(json.dumps({"before": before, "peak": peak_megabytes()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    config = parser.parse_args().measure
    if config is not None:
        measure(config)
        return
    folder = Path(tempfile.mkdtemp(prefix="gristmill-bench-"))
    try:
        small, large = (peak_of_run(folder, rows) for rows in (SMALL, LARGE))
    finally:
        shutil.rmtree(folder)
    report("imports and tokenizer: peak RSS", f"{large['before']:.0f} MB")
    report(f"{SMALL:,} conversations: peak RSS", f"{small['peak']:.0f} MB")
    report(f"{LARGE:,} conversations: peak RSS", f"{large['peak']:.0f} MB")
    growth = large["peak"] / small["peak"]
    report(f"growth from {SMALL:,} to {LARGE:,}", f"{growth:.2f}x", f"<= {TARGET}x", growth <= TARGET)


if __name__ == "__main__":
    main()
