"""Training from a base equals transformers' own; measuring beside another tokenizer never trains anew."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import Serial, made_up_texts, mill_of, published_digests
from tokenizer.difficult import difficult_texts
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer

from flows.cli.summary import Summary
from schemas.errors import ConfigError, InputError
from schemas.run import RunManifest
from schemas.tokenizer import TrainTokenizerConfig

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "tokenizer"


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample")
    pq.write_table(pa.table({"text": made_up_texts(120, longest=60)}), folder / "a.parquet")
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A WordPiece tokenizer with a post-processor, as BERT has it."""
    folder = tmp_path_factory.mktemp("bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "##b"]
    tokenizer = Tokenizer(models.WordPiece({word: id_ for id_, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(words[:4])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names})
    )
    return folder


def train(sample: Path, output_dir: Path, **changes: Any) -> tuple[RunManifest, Serial]:
    raw = {"output_dir": str(output_dir), "sample": str(sample), "vocabulary_size": 700, "held_out": 0.2}
    return mill_of("train-tokenizer", TrainTokenizerConfig.parse({**raw, **changes}))


def test_a_base_gives_what_transformers_gives(sample: Path, tmp_path: Path) -> None:
    train(sample, tmp_path, base=str(FIXTURE), held_out=0, extra_special_tokens=["<x>"])
    texts = pq.read_table(sample / "a.parquet")["text"].to_pylist()
    base = AutoTokenizer.from_pretrained(FIXTURE)
    expected = base.train_new_from_iterator([texts], 700, new_special_tokens=["<x>"])
    found = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    own, other = (json.loads(one.backend_tokenizer.to_str())["model"] for one in (found, expected))
    assert (own["vocab"], own["merges"]) == (other["vocab"], other["merges"])
    assert set(found.all_special_ids) == {0, 1, 2, 3}
    assert (found.eos_token, found.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert found.chat_template == base.chat_template
    for text in difficult_texts(300):
        ids = found(text)["input_ids"]
        assert ids == expected(text)["input_ids"] and found.decode(ids) == text
    written = (tmp_path / "tokenizer" / "tokenizer_config.json").read_text()
    assert str(FIXTURE) not in written and "local" not in written


def test_a_wordpiece_base_keeps_its_frame(sample: Path, bert: Path, tmp_path: Path) -> None:
    train(sample, tmp_path, base=str(bert), min_frequency=3)
    found = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    tokens = found.convert_ids_to_tokens(found("a b")["input_ids"])
    assert (tokens[0], tokens[-1]) == ("[CLS]", "[SEP]")
    assert (found.cls_token, found.sep_token, found.unk_token) == ("[CLS]", "[SEP]", "[UNK]")
    assert set(found.all_special_tokens) == {"[PAD]", "[UNK]", "[CLS]", "[SEP]"}


def test_the_place_of_a_base_does_not_matter(sample: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(FIXTURE, tmp_path / "copy"))
    one, _ = train(sample, tmp_path / "one", base=str(FIXTURE))
    two, _ = train(sample, tmp_path / "two", base=str(copy))
    assert one.run_hash == two.run_hash
    assert published_digests(tmp_path / "one" / "latest") == published_digests(tmp_path / "two" / "latest")
    (copy / "trainer_state.json").write_text("{}")
    assert train(sample, tmp_path / "two", base=str(copy))[0].run_hash == one.run_hash
    (copy / "config.json").write_text('{"model_type": "qwen2"}')
    assert train(sample, tmp_path / "two", base=str(copy))[0].run_hash != one.run_hash


def test_roles_and_template_of_a_base_can_be_replaced(sample: Path, tmp_path: Path) -> None:
    roles = {"eos_token": "<end>", "extra_special_tokens": ["<end>"], "chat_template": "{{ messages }}"}
    train(sample, tmp_path, base=str(FIXTURE), **roles)
    found = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    assert (found.eos_token, found.chat_template) == ("<end>", "{{ messages }}")
    assert len(found.all_special_ids) == 4


def test_options_that_a_base_cannot_have(sample: Path, bert: Path, tmp_path: Path) -> None:
    for base, options, field in (
        (bert, {"max_token_length": 5}, "max_token_length"),
        (FIXTURE, {"eos_token": "<nowhere>"}, "eos_token"),
        (tmp_path, {}, "base"),
        (tmp_path / "nothing", {}, "base"),
        ("org/model", {}, "base_revision"),
        ("gpt2", {}, "base_revision"),
    ):
        with pytest.raises(ConfigError) as caught:
            train(sample, tmp_path / "out", base=str(base), **options)
        assert caught.value.where == field


@pytest.mark.parametrize(
    ("options", "least"),
    [
        ({"base": str(FIXTURE), "vocabulary_size": 100}, 259),
        ({"alphabet": "characters", "vocabulary_size": 8}, None),
        ({"model": "wordpiece", "vocabulary_size": 261}, None),
        ({"model": "unigram", "alphabet": "characters", "vocabulary_size": 8}, None),
    ],
    ids=str,
)
def test_a_vocabulary_without_room_is_refused(
    sample: Path, tmp_path: Path, options: dict[str, Any], least: int | None
) -> None:
    with pytest.raises(ConfigError, match="has no room for the alphabet and the special tokens") as caught:
        train(sample, tmp_path / "out", **options)
    assert (caught.value.code, caught.value.where) == ("bad_config", "vocabulary_size")
    assert least is None or f"which are {least}" in caught.value.message
    assert not (tmp_path / "out" / "latest").exists()


def test_a_comparison_measures_the_same_rows(sample: Path, tmp_path: Path) -> None:
    plain, _ = train(sample, tmp_path)
    manifest, serial = train(sample, tmp_path, compare_with=str(FIXTURE))
    assert [task for task, _ in serial.executed] == ["compare"]
    assert manifest.run_hash != plain.run_hash
    [bucket] = manifest.statistics["bytes_per_token"]
    [before] = plain.statistics["bytes_per_token"]
    assert bucket == {**before, **{key: bucket[key] for key in bucket if key.startswith("compared")}}
    # The rule of held-out rows, written out once more.
    texts = pq.read_table(sample / "a.parquet")["text"].to_pylist()
    held_out = np.random.default_rng([42, 0]).random(len(texts)) < 0.2
    other = Tokenizer.from_file(str(FIXTURE / "tokenizer.json"))
    chosen = [text for text, is_out in zip(texts, held_out, strict=True) if is_out]
    tokens = sum(len(other.encode(text).ids) for text in chosen)
    assert bucket["compared_tokens"] == tokens
    assert bucket["compared_bytes_per_token"] == round(sum(len(t.encode()) for t in chosen) / tokens, 4)
    said = "\n".join(Summary(manifest, str(tmp_path), False, 0.0).lines())
    assert f"({bucket['compared_bytes_per_token']} with the compared tokenizer)" in said
    assert "bytes per token, tokenizer" in (tmp_path / "latest" / "report.html").read_text()


def test_a_bad_compared_tokenizer_is_an_error(sample: Path, tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError) as caught:
        train(sample, tmp_path / "out", compare_with=str(tmp_path / "bad"))
    assert caught.value.code == "bad_tokenizer"


@pytest.mark.parametrize(("texts", "says"), [(None, "no row was held out"), (["", ""], "empty texts")])
def test_what_was_not_measured_is_said(
    sample: Path, tmp_path: Path, texts: list[str] | None, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    share = 0.0
    if texts is not None:
        sample, share = tmp_path / "in", 0.5
        sample.mkdir()
        pq.write_table(pa.table({"text": texts * 20}), sample / "a.parquet")
    with caplog.at_level("INFO", logger="gristmill"):
        manifest, _ = train(sample, tmp_path / "out", held_out=share)
    said = caplog.text + "\n".join(Summary(manifest, str(tmp_path), False, 0.0).lines())
    assert said.count(says) == 2 and "None" not in said
