"""The demonstration: chat rows from docstrings, a small tokenizer, packed shards, a verdict."""

from __future__ import annotations

import json
import time
from itertools import islice
from pathlib import Path
from typing import Any

from flows.registry import PACK_SFT, run_or_find
from flows.summary import Summary
from schemas.sft import PackSftConfig
from tasks.store.receipts import Verify

_VOCABULARY = 8_000
_TRAINING_MODULES = 400


def run_demo(output_dir: Path, as_json: bool) -> int:
    """Make the demo's inputs, pack them, validate the result, print what is where."""
    from tasks.corpus.bpe import train_bpe
    from tasks.demo.docstrings import library_sources, write_chats
    from tasks.validation import validate_path

    started = time.monotonic()
    chats = output_dir / "inputs" / "docstrings.jsonl"
    tokenizer = output_dir / "inputs" / "tokenizer"
    rows = write_chats(chats)
    sources = (text for _, text in islice(library_sources(), _TRAINING_MODULES))
    vocabulary = train_bpe(sources, tokenizer, _VOCABULARY)
    config = PackSftConfig.parse(_config(output_dir, chats, tokenizer))
    summary = run_or_find(PACK_SFT, config, "threads", Verify.SIZE, force=False)
    verdict = validate_path(Path(summary.run_dir))
    verdict.raise_if_bad()
    seconds = time.monotonic() - started
    if as_json:
        print(json.dumps({**summary.as_dict(), "seconds": round(seconds, 3), "valid": verdict.ok}))
    else:
        _print_tables(summary, rows, vocabulary, seconds)
    return 0


def _config(output_dir: Path, chats: Path, tokenizer: Path) -> dict[str, Any]:
    return {
        "output_dir": str(output_dir / "sft"),
        "datasets": [{"name": "docstrings", "path": str(chats)}],
        "tokenizer": {"path": str(tokenizer)},
        "pack": {"size": 2048},
        "splits": {"train": 0.9, "valid": 0.05, "test": 0.05},
        "deduplicate": True,
    }


def _print_tables(summary: Summary, rows: int, vocabulary: int, seconds: float) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="gristmill demo")
    for column in ("split", "data set", "sequences", "bins", "full", "tokens", "trained"):
        table.add_column(column, justify="left" if column in ("split", "data set") else "right")
    for split, datasets in summary.manifest.statistics["splits"].items():
        for name, counts in datasets.items():
            table.add_row(
                split,
                name,
                f"{counts['sequences']:,}",
                f"{counts['bins']:,}",
                f"{counts['packing_efficiency']:.2f}%",
                f"{counts['tokens']:,}",
                f"{counts['trained_tokens']:,}",
            )
    Console().print(table)
    ledger = summary.manifest.ledger
    print(f"inputs   {rows:,} docstring chats, a {vocabulary:,}-token BPE tokenizer")
    print(
        f"ledger   {ledger.rows_in:,} rows in = {ledger.rows_used:,} used + {ledger.duplicates:,} duplicates",
        end="",
    )
    print(f" + {ledger.rows_rejected:,} rejected")
    print(
        f"run      {summary.run_dir} ({'cached' if summary.cached else 'new'}, valid, {seconds:.1f} s in all)"
    )
    print(f"trainer  {Path(summary.run_dir).parent.parent / 'latest' / 'splits' / 'train'}")
