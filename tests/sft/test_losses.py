"""Nothing disappears in silence: what a run lost is in its summary, report, manifest, log and JSON."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from commands import Cli, small_config, write_config
from support import chat, write_jsonl
from transformers import AutoTokenizer

SPLITS = {"train": 0.5, "valid": 0.25, "test": 0.25}


def conversations(number: int, words: int, seed: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [chat(f"ask {i}", "answer " * rng.randint(1, words)) for i in range(number)]


@pytest.fixture
def run(cli: Cli, tmp_path: Path, small_tokenizer: Path) -> Callable[..., tuple[dict[str, Any], str, Path]]:
    """Run pack-sft over named rows; return the JSON, the summary of the cached re-run, and the run folder."""

    def start(rows: dict[str, list[Any]], weights: dict[str, float] | None = None, **changes: Any) -> Any:
        datasets = [
            {"name": name, "path": str(write_jsonl(tmp_path / f"{name}.jsonl", some)),
             **({"weight": weights[name]} if weights else {})}
            for name, some in rows.items()
        ]  # fmt: skip
        config = small_config(tmp_path / "out", tmp_path, small_tokenizer, datasets=datasets, **changes)
        path = write_config(tmp_path / "config.yaml", config)
        done = cli("pack-sft", path, "--json")
        assert done.code == 0, done.err
        told = json.loads(done.out.splitlines()[-1])
        return told, cli("pack-sft", path).out, Path(told["run_dir"])

    return start


def token_counts(rows: list[Any], folder: Path) -> list[int]:
    """Tokens of each conversation, by transformers."""
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    texts = [tokenizer.apply_chat_template(row["messages"], tokenize=False) for row in rows]
    return [len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]


def stored_sequences(run_dir: Path) -> list[tuple[int, ...]]:
    found = []
    for path in sorted(run_dir.glob("datasets/**/*.parquet")):
        for row in pq.read_table(path).to_pylist():
            bounds = [*row["seq_start_id"], len(row["input_ids"])]
            found += [tuple(row["input_ids"][a:b]) for a, b in itertools.pairwise(bounds)]
    return found


@pytest.mark.parametrize("overflow", ["truncate", "drop", "split"])
def test_tokens_left_out_by_overflow_are_counted(overflow: str, run: Any, small_tokenizer: Path) -> None:
    rows = conversations(60, 90, seed=3)
    told, summary, run_dir = run(
        {"chats": rows}, pack={"size": 64, "overflow": overflow}, max_reject_fraction=1.0
    )
    lengths = token_counts(rows, small_tokenizer)
    long = [n for n in lengths if n > 65]
    assert 10 < len(long) < 60
    stored = stored_sequences(run_dir)
    stats = told["stats"]
    if overflow == "split":
        # Chunks of a sequence overlap by one token. One that would only have the line feed after the last turn, which
        # is not trained, is left out.
        dropped = [n for n in long if (n - 1) % 64 == 1]
        overlaps = sum(-(-(n - 1) // 64) - 1 for n in long) - len(dropped)
        lost = sum(lengths) - (sum(map(len, stored)) - overlaps)
        assert stats["tokens_cut"] == lost == len(dropped) == 1
        assert (stats["sequences_split"], stats["sequences_dropped"]) == (len(long), 0)
        assert "left out 1 token (" in told["warnings"][0]
        return
    lost = sum(lengths) - sum(map(len, stored))
    assert stats["tokens_cut"] == lost > 0
    kinds = {"truncate": "sequences_truncated", "drop": "sequences_dropped"}
    assert stats[kinds[overflow]] == len(long)
    [warning] = told["warnings"]
    assert f"{lost:,} tokens ({lost / sum(lengths):.1%})" in warning
    for text in (summary, (run_dir / "report.html").read_text()):
        assert f"{lost:,} tokens" in text
    assert json.loads((run_dir / "manifest.json").read_text())["warnings"] == [warning]


def test_empty_splits_and_data_sets_without_a_split_are_named(run: Any) -> None:
    rows = {"many": conversations(200, 9, seed=1), "one": conversations(1, 9, seed=2)}
    told, summary, run_dir = run(rows, splits=SPLITS)
    blend = json.loads((run_dir / "blend.json").read_text())
    present = {split: {path.split("/")[1] for path in entries[1::2]} for split, entries in blend.items()}
    expected = {split: ["one"] for split in SPLITS if "one" not in present[split]}
    assert len(expected) == 2
    assert told["stats"]["missing"] == expected
    warnings = [f"the split {split} has nothing from the data set one" for split in expected]
    assert told["warnings"] == [f"{warning}: no conversation fell into it" for warning in warnings]
    page = (run_dir / "report.html").read_text()
    for text in warnings:
        assert text in summary and text in page


def test_a_split_left_out_of_the_blend_is_named(run: Any) -> None:
    told, summary, run_dir = run(
        {"few": conversations(8, 9, seed=4)}, splits={"train": 0.9998, "valid": 0.0001, "test": 0.0001}
    )
    assert set(json.loads((run_dir / "blend.json").read_text())) == {"train"}
    assert told["stats"]["missing"] == {"valid": ["few"], "test": ["few"]}
    for split in ("valid", "test"):
        assert f"warning    the split {split} is empty: it is not published" in summary


def test_empty_answers_are_counted_or_rejected(run: Any) -> None:
    empty = [chat("q", ""), chat("q2", " \n")]
    rows = [*conversations(40, 9, seed=5), *empty]
    told, summary, _ = run({"chats": rows})
    assert told["stats"]["empty_answers"] == 2
    assert (
        "warning    2 empty assistant turns in the input; drop_empty: true rejects such conversations"
        in summary
    )
    told, _, run_dir = run({"chats": rows}, drop_empty=True)
    assert told["stats"]["empty_answers"] == 0 == len(told["warnings"])
    assert told["stats"]["rejected"] == {"empty_answer": 2}
    [rejects] = (run_dir / "rejects").glob("*.parquet")
    assert pq.read_table(rejects).column("row").to_pylist() == [40, 41]


def test_a_wrong_weight_rejects_its_row(run: Any) -> None:
    bad = [chat("q", "a") for _ in range(4)]
    for row, weight in zip(bad, (-1, 2, "0", []), strict=True):
        row["messages"][1]["weight"] = weight
    told, _, run_dir = run({"chats": [*conversations(5, 9, seed=6), *bad]}, max_reject_fraction=0.5)
    assert told["stats"]["rejected"] == {"bad_weight": 4}
    [rejects] = (run_dir / "rejects").glob("*.parquet")
    details = pq.read_table(rejects).column("detail").to_pylist()
    assert [d.split(" is ")[1] for d in details] == [
        f"{value}; allowed: 0 or 1" for value in ("-1", "2", "'0'", "[]")
    ]


@pytest.mark.parametrize(
    ("weights", "warned"), [(None, False), ({"a": 2.0, "b": 5.0}, True), ({"a": 1.0, "b": 1.0}, False)]
)
def test_weights_that_a_trainer_ignores(weights: dict[str, float] | None, warned: bool, run: Any) -> None:
    rows = {"a": conversations(300, 20, seed=7), "b": conversations(100, 20, seed=8)}
    told, summary, run_dir = run(rows, weights, pack={"size": 128})
    # What a trainer sees that opens the folder: every bin once.
    tokens: Counter[str] = Counter()
    bins: Counter[str] = Counter()
    for path in (run_dir / "splits/train").iterdir():
        name = path.name.split("__")[1]
        lists = pq.read_table(path).column("input_ids").combine_chunks()
        tokens[name] += len(lists.flatten())
        bins[name] += len(lists)
    train = told["stats"]["splits"]["train"]
    chosen = weights or {"a": 1.0, "b": 1.0}
    for name, counts in train.items():
        asked = chosen[name] / sum(chosen.values())
        assert (counts["bins"], counts["tokens"], counts["weight"]) == (
            bins[name],
            tokens[name],
            chosen[name],
        )
        assert counts["share"] == pytest.approx(tokens[name] / tokens.total(), abs=1e-6)
        assert counts["weight_share"] == pytest.approx(asked, abs=1e-6)
        assert counts["epochs"] == pytest.approx(asked * bins.total() / bins[name], abs=1e-4)
    assert summary.count("epochs in a blend as long as the split") == 2
    page = (run_dir / "report.html").read_text()
    assert "Shares of the data sets" in page
    if not warned:
        assert told["warnings"] == []
        return
    real = "/".join(f"{tokens[name] / tokens.total():.1%}" for name in "ab")
    expected = f"a trainer that opens splits/train sees {real} (a, b), the weights ask for 28.6%/71.4%"
    assert expected in told["warnings"][0] and expected in summary and expected in page
