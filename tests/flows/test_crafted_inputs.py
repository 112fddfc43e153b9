"""Every crafted input ends in output whose totals add up, or in an error with a code; see `crafted`."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crafted import Crafted, crafted_files
from support import chat, entry_of, mill_of

from schemas.errors import GristmillError
from schemas.run import RunManifest
from tasks.outputs.validate import validate_path

TEXTS = (".jsonl", ".jsonl.gz", ".jsonl.zst")
ALL = (*TEXTS, ".jsonl.bz2", ".json", ".json.gz", ".csv", ".csv.gz", ".csv.zst", ".csv.bz2", ".parquet")


def conversation(number: int) -> dict[str, Any]:
    return chat(f"What is {number} + 1?", f"It is {number + 1}.")


def measurement(number: int) -> dict[str, Any]:
    return {
        "event_time": f"2024-01-01T00:00:{number:02}Z",
        "src_addr": f"10.0.0.{number}",
        "dst_addr": "192.0.2.1",
        "ip_version": 4,
        "rtt": 1.5 + number,
    }


def document(number: int) -> dict[str, Any]:
    return {"text": f"document {number}"}


Case = tuple[Callable[[int], dict[str, Any]], tuple[str, ...], Callable[[Path, Path], dict[str, Any]]]
FLOWS: dict[str, Case] = {
    "pack-sft": (
        conversation,
        (*TEXTS, ".parquet"),
        lambda source, tokenizer: {
            "datasets": [{"name": "chats", "path": str(source)}],
            "tokenizer": {"path": str(tokenizer)},
            "pack": {"size": 128},
            "splits": {"train": 1, "valid": 0, "test": 0},
        },
    ),
    "sample-corpus": (
        document,
        (".parquet",),
        lambda source, tokenizer: {
            "datasets": {"web": {"name": "web", "source": str(source.parents[1]), "buckets": {"in": {"count": 3}}}}
        },
    ),
    "train-tokenizer": (
        document,
        (".parquet",),
        lambda source, tokenizer: {"sample": str(source.parent), "vocabulary_size": 300},
    ),
    "build-probe-rows": (measurement, ALL, lambda source, tokenizer: {"input": str(source), "train_ratio": 1.0}),
}  # fmt: skip


def outcome(flow: str, file: Crafted, folder: Path, tokenizer: Path) -> str:
    """Run a flow over one file in an empty folder; returns `done`, or the code of the error."""
    source = folder / "in" / file.name
    source.parent.mkdir(parents=True)
    source.write_bytes(file.content)
    raw = {**FLOWS[flow][2](source, tokenizer), "output_dir": str(folder / "out"), "max_reject_fraction": 1.0}
    try:
        manifest, _ = mill_of(flow, entry_of(flow).parse(raw))
    except GristmillError as error:
        assert error.exit_code in (1, 2, 3) and error.code != "internal", str(error)
        assert "\n" not in str(error) and "\x1b" not in str(error), str(error)
        return error.code
    assert_adds_up(manifest)
    assert validate_path(folder / "out").ok
    return "done"


def assert_adds_up(manifest: RunManifest) -> None:
    ledger = manifest.ledger
    assert ledger.rows_in == (
        ledger.rows_used + ledger.rows_rejected + ledger.filtered + ledger.duplicates + ledger.not_selected
    )
    assert ledger.rows_used > 0
    assert all(math.isfinite(value) for value in _numbers(manifest.model_dump()))


def _numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for item in value.values() for number in _numbers(item)]
    if isinstance(value, list | tuple):
        return [number for item in value for number in _numbers(item)]
    return [value] if isinstance(value, float) else []


@pytest.mark.parametrize(
    ("flow", "count"),
    [("pack-sft", 24), ("sample-corpus", 24), ("train-tokenizer", 24), ("build-probe-rows", 44)],
)
def test_a_crafted_input_gives_rows_and_rejects_or_an_error_with_a_code(
    tmp_path: Path, small_tokenizer: Path, flow: str, count: int
) -> None:
    good, endings, _ = FLOWS[flow]
    ends: Counter[str] = Counter()
    for file in crafted_files(1, count, good, endings):
        folder = tmp_path / file.name
        try:
            ends[outcome(flow, file, folder, small_tokenizer)] += 1
        except Exception as error:
            raise AssertionError(f"{file.name}: {file.what}") from error
        shutil.rmtree(folder)
    assert 0 < ends["done"] < count
    assert len(ends) > 2, ends


def test_the_same_seed_gives_the_same_files() -> None:
    once, again = (list(crafted_files(7, 60, measurement, ALL)) for _ in range(2))
    assert once == again
    assert once != list(crafted_files(8, 60, measurement, ALL))
