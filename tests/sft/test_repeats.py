"""With groups and deduplication, the first of equal conversations is kept, whatever groups they are in."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support import config_of, mill_serially, write_jsonl

from tasks.sft import repeats
from tasks.sft.order.positions import RING
from tasks.sft.repeats import RepeatsJob, find_repeats, ranges_of_digests, read_repeats


def conversation(number: int, group: int) -> dict[str, Any]:
    messages = [
        {"role": "user", "content": f"ask {number}"},
        {"role": "assistant", "content": f"answer {number}"},
        {"role": "user", "content": "and then?"},
        {"role": "assistant", "content": f"that is all of {number}"},
    ]
    return {"messages": messages, "home": f"group {group}"}


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    rng = np.random.default_rng(5)
    numbers, groups = rng.integers(0, 150, 600), rng.integers(0, 30, 600)
    return [conversation(int(n), int(g)) for n, g in zip(numbers, groups, strict=True)]


@pytest.mark.parametrize("held", [1 << 21, 40])
def test_the_first_row_of_each_conversation_is_kept(
    rows: list[dict[str, Any]],
    held: int,
    small_tokenizer: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(repeats, "_ROWS", held)
    for number in range(3):
        write_jsonl(tmp_path / "in" / f"{number}.jsonl", rows[200 * number : 200 * (number + 1)])
    config = config_of(
        tmp_path / "out", tmp_path / "in", small_tokenizer,
        datasets=[{"name": "chats", "path": str(tmp_path / "in"), "fields": {"group": "home"}}],
        deduplicate=True, splits={"train": 0.7, "valid": 0.2, "test": 0.1}, storage={"shard_tokens": 3_000},
    )  # fmt: skip

    manifest, serial = mill_serially(config)

    firsts: dict[str, int] = {}
    for number, row in enumerate(rows):
        firsts.setdefault(json.dumps(row["messages"]), number)
    shards = sorted((tmp_path / "out" / "latest" / "provenance").rglob("*.parquet"))
    kept = [
        (200 * int(one["file"][0]) + one["row"], path.parent.name)
        for path in shards
        for one in pq.read_table(path).to_pylist()
        if one["turn"] == 0
    ]
    assert sorted(row for row, _ in kept) == sorted(firsts.values())
    split_of: dict[str, set[str]] = {}
    for row, split in kept:
        split_of.setdefault(rows[row]["home"], set()).add(split)
    assert all(len(splits) == 1 for splits in split_of.values()) and set.union(*split_of.values()) == {
        "train", "valid", "test",
    }  # fmt: skip
    assert manifest.ledger.duplicates == len(rows) - len(firsts)
    found = [task for task, _ in serial.executed if task == "repeats"]
    assert len(found) == (1 if held > len(rows) else 15) and len(shards) > 5


def test_every_digest_is_in_one_range() -> None:
    for sequences in (0, 1, 5_000_000, 123_456_789):
        ranges = ranges_of_digests(sequences)
        assert ranges[0][0] == 0 and ranges[-1][1] == RING
        assert all(high == low for (_, high), (low, _) in itertools.pairwise(ranges))


def test_nothing_repeats_in_no_rows(tmp_path: Path) -> None:
    job = RepeatsJob(output_dir=str(tmp_path), stage="f" * 16, spool_stages=(), low=0, high=RING)

    receipt = find_repeats(job)

    assert receipt.statistics["rows"] == 0
    assert len(read_repeats(tmp_path, job.stage, 1, [(0, RING)])) == 0


def test_a_split_in_which_all_are_duplicates_says_so(small_tokenizer: Path, tmp_path: Path) -> None:
    # Every conversation of the second group repeats one of the first, which lies in another split.
    copies = [conversation(number, group) for group in (0, 1) for number in range(12)]
    write_jsonl(tmp_path / "copies.jsonl", copies)
    write_jsonl(tmp_path / "plain.jsonl", [conversation(number, number) for number in range(80)])
    told: set[str] = set()
    for seed in range(3):
        config = config_of(
            tmp_path / "out", tmp_path, small_tokenizer, deduplicate=True, seed=seed,
            datasets=[
                {"name": name, "path": str(tmp_path / f"{name}.jsonl"), "fields": {"group": "home"}}
                for name in ("copies", "plain")
            ],
            splits={"train": 0.4, "valid": 0.3, "test": 0.3},
        )  # fmt: skip
        told.update(warning.rpartition(": ")[2] for warning in mill_serially(config)[0].warnings)
    assert told == {"all of its 12 conversations are duplicates", "no conversation fell into it"}
