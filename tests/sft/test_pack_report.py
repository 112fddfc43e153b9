"""What the report of a packing run shows, counted again from the published shards."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support import chat, config_of, mill_serially, write_jsonl

from schemas.report import Chart, Report
from schemas.sft import PackSftConfig
from tasks import steps
from tasks.report.compose import ReportJob, compose
from tasks.report.histogram import even_classes, fill_classes
from tasks.sft.view import load_decoder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = random.Random(5)
    rows: list[Any] = [chat("ask " * rng.randint(1, 30), "answer " * rng.randint(1, 60)) for _ in range(300)]
    return write_jsonl(tmp_path_factory.mktemp("in") / "a.jsonl", [*rows, {"x": 1}])


def reported(config: PackSftConfig, monkeypatch: pytest.MonkeyPatch) -> Report:
    """Run, and catch the report on its way to the page."""
    caught: list[Report] = []

    def catch(job: ReportJob) -> Report:
        caught.append(compose(job))
        return caught[-1]

    monkeypatch.setattr(steps, "compose", catch)
    mill_serially(config)
    return caught[0]


def shards(config: PackSftConfig) -> tuple[list[int], list[int]]:
    """Stored lengths of all sequences, and of all bins what counts against the pack size."""
    lengths: list[int] = []
    costs: list[int] = []
    less = 1 if config.pack.count.value == "runtime" else 0
    for path in sorted(Path(config.output_dir, "latest", "datasets").rglob("*.parquet")):
        for row in pq.read_table(path).to_pylist():
            found = np.diff([*row["seq_start_id"], len(row["input_ids"])]).tolist()
            lengths += found
            costs.append(sum(found) - less * len(found))
    return lengths, costs


def counts(chart: Chart) -> tuple[list[str], list[int]]:
    return list(chart.labels), [int(value) for value in chart.series[0].values]


@pytest.mark.parametrize("shard_tokens", [1 << 20, 4_000])
@pytest.mark.parametrize("pack", [{"size": 200}, {"size": 96, "count": "stored", "overflow": "split"}])
def test_histograms_count_what_is_in_the_shards(
    shard_tokens: int,
    pack: dict[str, Any],
    source: Path,
    small_tokenizer: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    splits = {"train": 0.8, "valid": 0.2, "test": 0}
    storage = {"shard_tokens": shard_tokens}
    config = config_of(tmp_path, source, small_tokenizer, pack=pack, splits=splits, storage=storage)

    report = reported(config, monkeypatch)

    lengths, costs = shards(config)
    assert not any("could not be made" in remark for remark in report.remarks)
    assert counts(report.charts[0]) == even_classes(np.bincount(lengths))
    assert counts(report.charts[1]) == fill_classes(np.array(costs) / config.pack.size)


def test_padding_counts_towards_the_fill_and_not_towards_the_lengths(
    source: Path, small_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tmp_path, source, small_tokenizer, pack={"size": 256, "pad_to_multiple": 64})

    report = reported(config, monkeypatch)

    lengths, costs = shards(config)
    assert counts(report.charts[1]) == fill_classes(np.array(costs) / 256)
    assert sum(counts(report.charts[0])[1]) == len(lengths)
    assert counts(report.charts[0]) != even_classes(np.bincount(lengths))


def test_the_headline_numbers_are_those_of_the_manifest(
    source: Path, small_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tmp_path, source, small_tokenizer)

    report = reported(config, monkeypatch)

    lengths, costs = shards(config)
    facts = {fact.label: fact.value for fact in report.facts}
    assert facts["conversations"] == "300"
    assert facts["rejected"] == "0.3%"
    assert facts["bins"] == f"{len(costs):,}"
    assert facts["tokens"] == f"{sum(lengths):,}"
    assert facts["filled"] == f"{100 * sum(costs) / len(costs) / config.pack.size:.1f}%"
    assert [row[:3] for row in report.rejects[1].rows] == [("missing_messages", "a.jsonl", "300")]


def test_the_samples_are_the_first_bins_of_train(
    source: Path, small_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = {"train": 0.9, "valid": 0.1, "test": 0}
    report = reported(config_of(tmp_path, source, small_tokenizer, splits=splits), monkeypatch)

    decode = load_decoder(small_tokenizer)
    [shard] = sorted(Path(tmp_path, "latest", "splits", "train").glob("*.parquet"))
    rows = pq.read_table(shard).to_pylist()[:3]
    assert [sample.title for sample in report.samples] == [f"chats, train, bin {i}" for i in range(3)]
    for sample, row in zip(report.samples, rows, strict=True):
        ends = [*row["seq_start_id"][1:], len(row["input_ids"])]
        shown = ["".join(span.text for span in sequence) for sequence in sample.sequences]
        expected = [
            decode(row["input_ids"][start:end]) for start, end in zip(row["seq_start_id"], ends, strict=True)
        ]
        assert shown == expected[:3]
        assert f"of {len(row['input_ids'])} tokens; {sum(row['loss_mask'])} tokens" in sample.note


@pytest.mark.parametrize("format_name", ["memmap", "npy"])
def test_every_format_is_reported_on_alike(
    format_name: str, source: Path, small_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet, other = (
        reported(config_of(tmp_path / name, source, small_tokenizer, storage={"format": name}), monkeypatch)
        for name in ("parquet", format_name)
    )

    assert other.remarks == parquet.remarks
    assert other.samples == parquet.samples != ()
    assert other.charts == parquet.charts
    assert other.facts == parquet.facts
