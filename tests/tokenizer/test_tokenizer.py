"""Training on a sample: a tokenizer transformers loads, the same bytes every time, measured on held-out rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import (
    Serial,
    chat,
    config_of,
    made_up_texts,
    mill_of,
    mill_serially,
    published_digests,
    sample_serially,
    write_jsonl,
)

from schemas.corpus import SampleCorpusConfig
from schemas.errors import ConfigError, InputError
from schemas.run import RunManifest
from schemas.tokenizer import TrainTokenizerConfig
from tasks.outputs.validate import validate_path


def train(config: TrainTokenizerConfig) -> tuple[RunManifest, Serial]:
    return mill_of("train-tokenizer", config)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published sample of two buckets."""
    root = tmp_path_factory.mktemp("sample")
    sources = made_up_texts(120)
    for bucket, texts in (("a", sources[:60]), ("b", sources[60:])):
        (root / "in" / bucket).mkdir(parents=True)
        pq.write_table(pa.table({"text": texts}), root / "in" / bucket / "part.parquet", row_group_size=10)
    datasets = {
        "web": {
            "name": "Web",
            "source": str(root / "in"),
            "buckets": {"a": {"count": 40}, "b": {"count": 40}},
        }
    }
    sample_serially(SampleCorpusConfig.parse({"output_dir": str(root / "out"), "datasets": datasets}))
    return root / "out"


def tokenizer_config(sample: Path, output_dir: Path, **changes: Any) -> TrainTokenizerConfig:
    raw = {"output_dir": str(output_dir), "sample": str(sample), "vocabulary_size": 1000, "held_out": 0.2}
    return TrainTokenizerConfig.parse({**raw, **changes})


def test_transformers_loads_it(sample: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    manifest, _ = train(
        tokenizer_config(
            sample,
            tmp_path / "out",
            special_tokens=["<pad>", "<eos>", "<|im_start|>", "<|im_end|>"],
            eos_token="<eos>",
            pad_token="<pad>",
        )
    )
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out" / "tokenizer")
    assert len(tokenizer) == 1000 == manifest.statistics["vocabulary_size"]
    assert tokenizer.convert_ids_to_tokens([0, 1, 2, 3]) == ["<pad>", "<eos>", "<|im_start|>", "<|im_end|>"]
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<eos>", "<pad>")
    for text in ("def f(x):\n    return x", "naïve 日本語 🙂", "  spaces\t\n\n"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert "<|im_start|>user\nhi<|im_end|>" in tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False
    )
    assert validate_path(tmp_path / "out").ok


def test_the_same_sample_gives_the_same_bytes(sample: Path, tmp_path: Path) -> None:
    train(tokenizer_config(sample, tmp_path / "one"))
    train(tokenizer_config(sample, tmp_path / "two"))
    assert published_digests(tmp_path / "one" / "latest") == published_digests(tmp_path / "two" / "latest")
    _, again = train(tokenizer_config(sample, tmp_path / "one"))
    assert again.executed == []


def test_bytes_per_token_are_those_of_the_held_out_rows(sample: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    manifest, _ = train(tokenizer_config(sample, tmp_path / "out", held_out=0.5))
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer" / "tokenizer.json"))
    entries = manifest.statistics["bytes_per_token"]
    assert [entry["bucket"] for entry in entries] == ["Web/a", "Web/b"]
    assert manifest.ledger.rows_in == 80
    assert manifest.ledger.not_selected == sum(entry["held_out_rows"] for entry in entries) > 20
    total = sum(entry["held_out_tokens"] for entry in entries)
    texts = [
        t
        for shard in sorted((sample / "latest").glob("train-*"))
        for t in pq.read_table(shard)["text"].to_pylist()
    ]
    # Every ratio is that of real texts: between the least and the most compressible of them.
    ratios = [len(t.encode()) / len(tokenizer.encode(t).ids) for t in texts]
    assert total > 0
    assert all(min(ratios) <= entry["bytes_per_token"] <= max(ratios) for entry in entries)


def test_pack_sft_follows_the_tokenizer_by_content(sample: Path, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "chats.jsonl", [chat(f"q{i}", f"a{i}") for i in range(20)])
    hashes = []
    for size in (600, 700):
        train(tokenizer_config(sample, tmp_path / "tok", vocabulary_size=size))
        manifest, serial = mill_serially(config_of(tmp_path / "sft", source, tmp_path / "tok" / "tokenizer"))
        assert [task for task, _ in serial.executed] == ["screen", "tokenize", "cut", "pack", "validate"]
        hashes.append(manifest.run_hash)
    assert hashes[0] != hashes[1]


def test_any_folder_of_parquet_will_do(tmp_path: Path) -> None:
    texts = [*made_up_texts(5), None]
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"text": texts}), tmp_path / "in" / "x.parquet")
    manifest, _ = train(
        tokenizer_config(tmp_path / "in", tmp_path / "out", held_out=0, max_reject_fraction=0.2)
    )
    assert (manifest.ledger.rows_in, manifest.ledger.rows_used) == (6, 5)
    rejects = pq.read_table(tmp_path / "out" / "latest" / "rejects" / "sample-000000.parquet").to_pylist()
    assert [(row["source_file"], row["row"], row["reason"]) for row in rejects] == [
        ("x.parquet", 5, "null_text")
    ]
    [entry] = json.loads((tmp_path / "out" / "latest" / "report.json").read_text())["buckets"]
    assert (entry["bucket"], entry["bytes_per_token"]) == ("all", None)


@pytest.mark.parametrize("kind", [pa.binary(), pa.binary_view(), pa.string_view()], ids=str)
def test_texts_may_be_bytes_or_views(tmp_path: Path, kind: pa.DataType) -> None:
    texts = [text.encode() for text in made_up_texts(5)]
    bad = [b"\xff"] if kind != pa.string_view() else []
    values = [*texts, *bad] if bad else [text.decode() for text in texts]
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"text": pa.array(values, kind)}), tmp_path / "in" / "x.parquet")
    manifest, _ = train(
        tokenizer_config(tmp_path / "in", tmp_path / "out", held_out=0, max_reject_fraction=0.2)
    )
    assert manifest.ledger.rows_used == 5
    assert manifest.ledger.rejected == ({"invalid_utf8": 1} if bad else {})


def test_a_bucket_without_a_name_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    columns = {"text": ["x", "y"], "source_dataset": ["web", None], "source_bucket": ["b", "b"]}
    pq.write_table(pa.table(columns), tmp_path / "in" / "x.parquet")
    manifest, _ = train(tokenizer_config(tmp_path / "in", tmp_path / "out", held_out=0))
    found = [bucket["bucket"] for bucket in manifest.statistics["bytes_per_token"]]
    assert found == ["web/b", "unknown/b"]


def test_texts_of_a_string_column_may_be_no_utf8(tmp_path: Path) -> None:
    texts = pa.array([b"good text", b"\xff"]).view(pa.string())
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"text": texts}), tmp_path / "in" / "x.parquet")
    config = tokenizer_config(tmp_path / "in", tmp_path / "out", held_out=0, max_reject_fraction=0.5)
    manifest, _ = train(config)
    assert (manifest.ledger.rows_used, manifest.ledger.rejected) == (1, {"invalid_utf8": 1})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"vocabulary_size": 257}, "vocabulary_size 257 is below 256 bytes plus 3 special tokens"),
        ({"eos_token": "</s>"}, "eos_token '</s>' must be one of special_tokens"),
        ({"special_tokens": ["a", "b"]}, "eos_token '<|im_end|>' must be one of special_tokens"),
        ({"special_tokens": ["a", "a"]}, "distinct"),
        ({"extra_special_tokens": ["<|im_end|>"]}, "distinct"),
        ({"model": "unigram", "max_token_length": 5}, "max_token_length has no effect on the model unigram"),
        ({"model": "unigram", "min_frequency": 5}, "min_frequency has no effect on the model unigram"),
        (
            {"model": "wordpiece", "max_token_length": 5},
            "max_token_length has no effect on the model wordpiece",
        ),
        ({"model": "wordpiece", "pre_tokenizer": "none"}, "pre_tokenizer none makes a whole text one word"),
        ({"unk_token": "<|endoftext|>"}, "unk_token has no effect"),
        ({"unk_token": "<unk>", "alphabet": "characters"}, "unk_token '<unk>' must be one of special_tokens"),
        ({"limit_alphabet": 100}, "limit_alphabet needs alphabet: characters"),
        ({"pre_tokenizer": "gpt4"}, "'gpt2', 'llama3', 'qwen2', 'digits', 'digits3' or 'none'"),
        ({"base": "x", "model": "unigram"}, "model comes from the base"),
        ({"base": "x", "normalizer": "nfc"}, "normalizer comes from the base"),
        ({"base": "x", "limit_alphabet": 5}, "limit_alphabet cannot be set with a base"),
        ({"base": "x", "special_tokens": ["a"]}, "add tokens as extra_special_tokens"),
        ({"base_revision": "main"}, "base_revision needs a base"),
        ({"compare_revision": "main"}, "compare_revision needs compare_with"),
        ({"compare_with": "x", "held_out": 0}, "compare_with needs held_out above 0"),
        ({"held_out": 1.0}, "less than 1"),
    ],
)
def test_bad_configurations(sample: Path, tmp_path: Path, change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tokenizer_config(sample, tmp_path, **change)
    assert says in caught.value.message


def test_bad_samples(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        train(tokenizer_config(tmp_path / "nothing", tmp_path / "out"))
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"body": ["x"]}), tmp_path / "in" / "x.parquet")
    with pytest.raises(InputError) as caught:
        train(tokenizer_config(tmp_path / "in", tmp_path / "out"))
    assert caught.value.code == "missing_column"


def test_a_text_column_of_another_type_is_named(tmp_path: Path) -> None:
    path = tmp_path / "in" / "x.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"text": pa.array([{"a": None}])}), path)
    with pytest.raises(InputError) as caught:
        train(tokenizer_config(path.parent, tmp_path / "out"))
    assert (caught.value.code, caught.value.where) == ("bad_column", str(path))
