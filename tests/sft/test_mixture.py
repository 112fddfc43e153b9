"""`mix` gives `splits/train` the shares of tokens that the weights ask for, nested, with every row accounted for."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support import chat, config_of, mill_serially, write_jsonl

from schemas.errors import ConfigError, IntegrityError
from schemas.run import RunManifest
from schemas.sft import PackSftConfig
from tasks.outputs.validate import validate_path

SIZES = {"big": 900, "small": 250, "middle": 400}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    rng = np.random.default_rng(8)
    for name, count in SIZES.items():
        rows = [chat(f"{name} {i}", "word " * int(rng.integers(1, 60))) for i in range(count)]
        # Every fifth row repeats the row before it.
        rows = [rows[i - 1] if i % 5 == 4 else row for i, row in enumerate(rows)]
        write_jsonl(folder / f"{name}.jsonl", rows)
    return folder


def config(
    output: Path, inputs: Path, tokenizer: Path, weights: dict[str, float], **changes: Any
) -> PackSftConfig:
    datasets = [
        {"name": name, "path": str(inputs / f"{name}.jsonl"), "weight": weight}
        for name, weight in weights.items()
    ]
    splits = {"train": 0.9, "valid": 0.1, "test": 0}
    given = {"pack": {"size": 48}, "storage": {"shard_tokens": 2_500}, "splits": splits, **changes}
    return config_of(output, inputs, tokenizer, datasets=datasets, deduplicate=True, **given)


def shown(output: Path) -> tuple[Counter[str], dict[str, set[int]], Counter[tuple[str, int]]]:
    """Tokens, rows and how often each row occurs in what `splits/train` names, by data set."""
    tokens: Counter[str] = Counter()
    rows: dict[str, set[int]] = {}
    times: Counter[tuple[str, int]] = Counter()
    for link in sorted((output / "latest" / "splits" / "train").iterdir()):
        shard = link.resolve()
        name = shard.parts[-4]
        tokens[name] += sum(map(len, pq.read_table(shard, columns=["input_ids"])["input_ids"].to_pylist()))
        beside = Path(*shard.parts[:-5], "provenance", *shard.parts[-4:])
        found = pq.read_table(beside)["row"].to_pylist()
        rows.setdefault(name, set()).update(found)
        times.update((name, row) for row in found)
    return tokens, rows, times


def run(
    output: Path, inputs: Path, tokenizer: Path, weights: dict[str, float], **changes: Any
) -> tuple[RunManifest, Counter[str]]:
    manifest, serial = mill_serially(config(output, inputs, tokenizer, weights, **changes))
    assert validate_path(output).ok
    return manifest, Counter(task for task, _ in serial.executed)


@pytest.mark.parametrize("mix", ["downsample", "upsample"])
@pytest.mark.parametrize("weights", [(1, 1, 1), (5, 1, 2), (1, 12, 3)])
def test_train_has_the_shares_of_the_weights(
    mix: str, weights: tuple[float, ...], inputs: Path, small_tokenizer: Path, tmp_path: Path
) -> None:
    given = dict(zip(SIZES, weights, strict=True))
    manifest, _ = run(tmp_path, inputs, small_tokenizer, given, mix=mix)

    tokens, _, times = shown(tmp_path)
    for name, weight in given.items():
        assert abs(tokens[name] / tokens.total() - weight / sum(weights)) < 0.005
        counts = manifest.statistics["splits"]["train"][name]
        assert counts["shown_tokens"] == tokens[name]
        assert abs(counts["share"] - tokens[name] / tokens.total()) < 1e-6
    ledger = manifest.ledger
    assert (ledger.not_selected > 0) == (mix == "downsample")
    assert ledger.rows_in == sum(SIZES.values())
    for name in SIZES:
        often = [count for (dataset, _), count in times.items() if dataset == name]
        assert max(often) - min(often) <= 1, "each row of a data set as often, or once more"
    if mix == "downsample":
        assert max(times.values()) == 1
    # A trainer that follows blend.json draws each data set by its weight, whatever the folder has.
    blend = json.loads((tmp_path / "latest" / "blend.json").read_bytes())["train"]
    drawn: Counter[str] = Counter()
    for share, path in zip(blend[::2], blend[1::2], strict=True):
        drawn[path.split("/")[1]] += float(share)
    assert {name: round(value, 6) for name, value in drawn.items()} == {
        name: round(value, 6) for name, value in given.items()
    }
    assert len(set(blend[1::2])) == len(blend) // 2


def test_smaller_shares_are_parts_of_larger_ones_and_make_one_shard_each(
    inputs: Path, small_tokenizer: Path, tmp_path: Path
) -> None:
    run(tmp_path, inputs, small_tokenizer, {"big": 1.0, "small": 1.0})
    before: set[int] = set()
    for weight in (0.3, 0.9, 1.7, 3.0):
        _, steps = run(tmp_path, inputs, small_tokenizer, {"big": weight, "small": 1.0}, mix="downsample")
        # Where the rest is less than half a conversation, there is no shard of it to validate.
        assert steps in ({"pack": 1, "validate": 1}, {"pack": 1})
        _, rows, _ = shown(tmp_path)
        assert before < rows["big"] and len(rows["small"]) == len(shown(tmp_path)[1]["small"])
        before = rows["big"]


def test_other_splits_are_natural(inputs: Path, small_tokenizer: Path, tmp_path: Path) -> None:
    weights = {"big": 1.0, "small": 1.0}
    natural, _ = run(tmp_path / "natural", inputs, small_tokenizer, weights)
    mixed, _ = run(tmp_path / "mixed", inputs, small_tokenizer, weights, mix="downsample")
    assert mixed.statistics["splits"]["valid"] == natural.statistics["splits"]["valid"]


def test_what_can_have_no_share_is_refused(
    inputs: Path, small_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = write_jsonl(
        tmp_path / "few" / "small.jsonl", [chat("one", "word " * 40), chat("two", "word " * 40)]
    )
    write_jsonl(tmp_path / "few" / "big.jsonl", [chat(f"{i}", "word " * 30) for i in range(20)])
    with pytest.raises(IntegrityError) as caught:
        run(tmp_path / "a", few.parent, small_tokenizer, {"big": 1.0, "small": 1.3}, mix="downsample")
    assert caught.value.code == "mix_share" and "mix: natural" in str(caught.value)
    # Five whole copies of `small` are too few, and six too many: `big` has all of its rows.
    with pytest.raises(IntegrityError) as caught:
        run(tmp_path / "a", few.parent, small_tokenizer, {"big": 1.0, "small": 0.7}, mix="upsample")
    assert caught.value.code == "mix_share" and caught.value.where == "datasets.small.weight"

    monkeypatch.setattr("tasks.sft.mixture.MOST_REPEATS", 3)
    with pytest.raises(ConfigError) as refused:
        run(tmp_path / "b", inputs, small_tokenizer, {"big": 1.0, "small": 1.0}, mix="upsample")
    assert refused.value.code == "mix_repeats" and refused.value.where == "datasets.small.weight"


@pytest.mark.parametrize("mix", ["downsample", "upsample"])
def test_a_weight_too_small_for_a_share(
    mix: str, inputs: Path, small_tokenizer: Path, tmp_path: Path
) -> None:
    weights = {"big": 1e-315, "small": 1e9}
    if mix == "downsample":
        run(tmp_path, inputs, small_tokenizer, weights, mix=mix)
        assert set(shown(tmp_path)[0]) == {"small"}
        return
    with pytest.raises(ConfigError) as refused:
        run(tmp_path, inputs, small_tokenizer, weights, mix=mix)
    assert refused.value.code == "mix_repeats" and len(refused.value.message) < 300
