"""Run the demonstration: sample a corpus, train a tokenizer, pack chats with it, make probe rows, validate all."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from flows.cli.invocation import command_line
from flows.cli.plain import print_json
from flows.cli.registry import (
    BUILD_PROBE_ROWS,
    PACK_SFT,
    SAMPLE_CORPUS,
    TRAIN_TOKENIZER,
    FlowEntry,
    run_or_find,
)
from flows.cli.summary import Summary
from tasks.run.receipts import Verify

_VOCABULARY = 8_000


def run_demo(output_dir: Path, as_json: bool) -> int:
    """Write the demo's inputs, run the flows on them, validate the results, and print where everything is."""
    from tasks.demo.corpus import write_corpus
    from tasks.demo.docstrings import write_chats
    from tasks.demo.measurements import write_measurements
    from tasks.outputs.validate import validate_path

    started = time.monotonic()
    inputs = output_dir / "inputs"
    rows = write_corpus(inputs / "corpus")
    write_chats(inputs / "docstrings.jsonl")
    write_measurements(inputs / "measurements")
    summaries = [
        _run(SAMPLE_CORPUS, _sample_config(output_dir, inputs, rows)),
        _run(TRAIN_TOKENIZER, _tokenizer_config(output_dir)),
        _run(PACK_SFT, _pack_config(output_dir, inputs)),
        _run(BUILD_PROBE_ROWS, _probe_config(output_dir, inputs)),
    ]
    for summary in summaries:
        validate_path(Path(summary.run_dir)).raise_if_bad()
    seconds = time.monotonic() - started
    if as_json:
        runs = [summary.as_dict() for summary in summaries]
        print_json({"flow": "demo", "seconds": round(seconds, 3), "runs": runs})
    else:
        _print_table(summaries, output_dir, seconds)
    return 0


def _run(entry: FlowEntry, raw: dict[str, Any]) -> Summary:
    return run_or_find(entry, entry.parse(raw), "threads", Verify.SIZE, force=False)


def _sample_config(output_dir: Path, inputs: Path, rows: dict[str, dict[str, int]]) -> dict[str, Any]:
    """Ask for half of every bucket."""
    datasets = {
        corpus: {
            # For a name that contains "github", texts are read from the column `content`.
            "name": "github-stdlib" if corpus == "code" else "python-docs",
            "source": str(inputs / "corpus" / corpus),
            "buckets": {bucket: {"count": count // 2} for bucket, count in buckets.items()},
        }
        for corpus, buckets in rows.items()
    }
    return {"output_dir": str(output_dir / "sample"), "datasets": datasets}


def _tokenizer_config(output_dir: Path) -> dict[str, Any]:
    return {
        "output_dir": str(output_dir / "tokenizer"),
        "sample": str(output_dir / "sample"),
        "vocabulary_size": _VOCABULARY,
        "held_out": 0.05,
    }


def _pack_config(output_dir: Path, inputs: Path) -> dict[str, Any]:
    return {
        "output_dir": str(output_dir / "sft"),
        "datasets": [{"name": "docstrings", "path": str(inputs / "docstrings.jsonl")}],
        "tokenizer": {"path": str(output_dir / "tokenizer" / "latest" / "tokenizer")},
        "pack": {"size": 2048},
        "splits": {"train": 0.9, "valid": 0.05, "test": 0.05},
        "deduplicate": True,
    }


def _probe_config(output_dir: Path, inputs: Path) -> dict[str, Any]:
    return {"output_dir": str(output_dir / "probes"), "input": str(inputs / "measurements")}


def _print_table(summaries: list[Summary], output_dir: Path, seconds: float) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"gristmill demo, all valid, {seconds:.0f} s")
    for column in ("flow", "rows in", "used", "output", "seconds"):
        table.add_column(column, justify="left" if column in ("flow", "output") else "right")
    for summary in summaries:
        ledger = summary.manifest.ledger
        took = "cached" if summary.cached else f"{summary.seconds:.1f}"
        made = _made(summary.manifest.statistics)
        table.add_row(summary.manifest.flow, f"{ledger.rows_in:,}", f"{ledger.rows_used:,}", made, took)
    Console().print(table)
    for summary in summaries:
        print(f"run      {summary.run_dir}")
    for summary in summaries:
        print(f"report   {summary.report}")
    print(f"trainer  {output_dir / 'sft' / 'latest' / 'splits' / 'train'}")
    print(f"loader   {output_dir / 'probes' / 'latest'}")
    print(f"inspect  {command_line('inspect', output_dir / 'sft', '--rows', 3)}")
    print(f"validate {command_line('validate', output_dir / 'sft')}")


def _made(statistics: dict[str, Any]) -> str:
    if "splits" in statistics:
        train = next(iter(statistics["splits"]["train"].values()))
        return f"{statistics['bins']:,} bins, train {train['packing_efficiency']:.1f}% full"
    if "probe_splits" in statistics:
        return f"{statistics['records']:,} records of {statistics['probes']:,} probes"
    if "buckets" in statistics:
        return f"{statistics['shards']:,} shards, {statistics['text_bytes'] / 1e6:.1f} MB of text"
    ratios = [
        bucket["bytes_per_token"] for bucket in statistics["bytes_per_token"] if bucket["bytes_per_token"]
    ]
    return f"{statistics['vocabulary_size']:,} tokens, {min(ratios):.1f} to {max(ratios):.1f} bytes each"
