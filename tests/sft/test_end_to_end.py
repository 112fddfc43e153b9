"""The whole of pack-sft on real chats, looked at with other eyes: plain pyarrow and transformers."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support import GSM8K, chat, config_of, made_up_chats, mill_serially, write_jsonl

from schemas.errors import IntegrityError
from schemas.sft import PackSftConfig
from tasks.outputs.validate import validate_path

EOS = "<｜end▁of▁sentence｜>"
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<｜Assistant｜>"
    "{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}"
    "{% else %}<｜User｜>{{ m.content }}{% endif %}{% endfor %}"
)


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GSM8K where it is there, made-up chats otherwise."""
    if GSM8K.is_file():
        return GSM8K
    return write_jsonl(tmp_path_factory.mktemp("chats") / "made-up.jsonl", made_up_chats(500))


def consumed(shard: Path) -> list[tuple[list[int], list[int]]]:
    """For every sequence `[s, e)` of a shard its ids and the labels the consumer trains.

    The consumer trains labels `ids[s+1:e]` where `loss_mask[s:e-1]`.
    """
    sequences = []
    for row in pq.read_table(shard).to_pylist():
        ids, mask = np.array(row["input_ids"]), np.array(row["loss_mask"], dtype=bool)
        for s, e in zip(row["seq_start_id"], [*row["seq_start_id"][1:], len(ids)], strict=True):
            sequences.append((ids[s:e].tolist(), ids[s + 1 : e][mask[s : e - 1]].tolist()))
    return sequences


def test_a_trainer_trains_exactly_the_assistant_texts(chats: Path, deepseek: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer: dict[str, Any] = {"path": str(deepseek), "chat_template": TEMPLATE}
    splits = {"train": 0.9, "valid": 0.05, "test": 0.05}
    base = config_of(tmp_path, chats, deepseek, pack={"size": 2048}, splits=splits)
    config = PackSftConfig.parse({**base.model_dump(), "tokenizer": tokenizer})
    manifest, _ = mill_serially(config)
    hf = AutoTokenizer.from_pretrained(deepseek)

    rows = [json.loads(line)["messages"] for line in chats.read_text().splitlines()]
    shards = sorted((tmp_path / "splits").glob("*/*.parquet"))
    sequences = [sequence for shard in shards for sequence in consumed(shard)]
    assert len(sequences) == len(rows) == manifest.ledger.rows_used

    whole = Counter(hf.apply_chat_template(m, chat_template=TEMPLATE, tokenize=False) for m in rows)
    assert Counter(hf.decode(ids) for ids, _ in sequences) == whole
    answers = Counter("".join(m["content"] + EOS for m in row if m["role"] == "assistant") for row in rows)
    assert Counter(hf.decode(labels) for _, labels in sequences) == answers
    assert validate_path(tmp_path).ok


def test_a_blend_names_shards_and_shares_out_weights(
    chats: Path, small_tokenizer: Path, tmp_path: Path
) -> None:
    lines = chats.read_text().splitlines()[:400]
    for name, part in (("one", lines[:300]), ("two", lines[300:])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(part) + "\n")
    config = config_of(
        tmp_path / "out",
        chats,
        small_tokenizer,
        datasets=[
            {"name": "one", "path": str(tmp_path / "one.jsonl"), "weight": 3},
            {"name": "two", "path": str(tmp_path / "two.jsonl"), "weight": 0.5},
        ],
        pack={"size": 1024},
        storage={"shard_tokens": 20_000},
        splits={"train": 0.8, "valid": 0.2, "test": 0},
    )
    mill_serially(config)
    run = (tmp_path / "out" / "latest").resolve()
    blend = json.loads((tmp_path / "out" / "blend.json").read_text())
    assert set(blend) == {"train", "valid"}
    for split, entries in blend.items():
        weights, paths = entries[0::2], entries[1::2]
        assert all(isinstance(weight, str) for weight in weights)
        assert all((run / f"{path}.parquet").is_file() for path in paths)
        for name, weight in (("one", 3), ("two", 0.5)):
            shares = [
                float(w) for w, p in zip(weights, paths, strict=True) if p.startswith(f"datasets/{name}/")
            ]
            assert sum(shares) == pytest.approx(weight)
        links = sorted((tmp_path / "out" / "splits" / split).iterdir())
        assert [link.resolve() for link in links] == [run / f"{path}.parquet" for path in paths]
        assert all(not link.readlink().is_absolute() for link in links)
    assert sum(path.count("datasets/one/") for path in blend["train"][1::2]) > 1


def test_pack_metadata_is_a_list_in_runtime_lengths(
    chats: Path, small_tokenizer: Path, tmp_path: Path
) -> None:
    mill_serially(config_of(tmp_path, chats, small_tokenizer, pack={"size": 1024}))
    [entry] = json.loads((tmp_path / "latest" / "pack_metadata" / "train.json").read_text())
    rows = [
        row for shard in (tmp_path / "splits" / "train").iterdir() for row in pq.read_table(shard).to_pylist()
    ]
    runtime = [len(row["input_ids"]) - len(row["seq_start_id"]) for row in rows]
    samples = [len(row["seq_start_id"]) for row in rows]
    longest = max(
        e - s - 1
        for row in rows
        for s, e in zip(row["seq_start_id"], [*row["seq_start_id"][1:], len(row["input_ids"])], strict=True)
    )
    assert entry["pack_size"] == 1024 >= max(runtime)
    assert entry["max_samples_per_bin"] == max(samples)
    assert entry["dataset_max_seqlen"] == longest
    assert entry["min_packed_seqlen"] == min(runtime)
    assert entry["packing_factor"] == pytest.approx(sum(samples) / len(rows), abs=1e-3)
    assert entry["packing_efficiency"] == pytest.approx(100 * sum(runtime) / (1024 * len(rows)), abs=1e-3)


def test_rows_lost_in_packing_count_against_the_reject_limit(small_tokenizer: Path, tmp_path: Path) -> None:
    rows = [chat("short", "answer")] * 5 + [chat("long " * 200, "cut off")] * 5
    source = write_jsonl(tmp_path / "chats.jsonl", rows)
    with pytest.raises(IntegrityError) as caught:
        mill_serially(config_of(tmp_path / "out", source, small_tokenizer))
    assert caught.value.code == "reject_limit"
    assert "no_trained_token_in_pack_size: 5" in caught.value.message
    manifest, _ = mill_serially(config_of(tmp_path / "out", source, small_tokenizer, max_reject_fraction=0.5))
    assert manifest.ledger.rejected == {"no_trained_token_in_pack_size": 5}


@pytest.mark.parametrize(("wanted", "kept"), [(1, 2), (True, 1), ("1", 1)])
def test_a_row_filter_tells_1_from_true(
    small_tokenizer: Path, tmp_path: Path, wanted: Any, kept: int
) -> None:
    marks = [1, True, "1", [1, 2], None, 0]
    rows = [{**chat(f"q{i}", f"a{i}"), "mark": mark} for i, mark in enumerate(marks)]
    source = write_jsonl(tmp_path / "chats.jsonl", rows)
    datasets = [{"name": "chats", "path": str(source), "where": {"mark": wanted}}]
    manifest, _ = mill_serially(config_of(tmp_path / "out", source, small_tokenizer, datasets=datasets))
    assert (manifest.ledger.rows_used, manifest.ledger.filtered) == (kept, len(marks) - kept)
