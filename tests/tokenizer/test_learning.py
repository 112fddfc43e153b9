"""Vocabularies are those of the `tokenizers` library's own training, and every text comes back."""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import made_up_texts, mill_of
from tokenizer.difficult import difficult_texts
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from schemas.tokenizer import TrainTokenizerConfig

# The published patterns, written out once more.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
WITH_UNKNOWN = {"special_tokens": ["<unk>", *CHATML], "unk_token": "<unk>"}
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


def split(pattern: str) -> Any:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def as_bytes(*, cut: bool) -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=cut)


def sequence(*steps: Any) -> Any:
    return pre_tokenizers.Sequence(list(steps))


def bpe(
    cut: Any = None, normalizer: Any = None, special: Any = CHATML, **options: Any
) -> tuple[Tokenizer, Any]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = cut or as_bytes(cut=True)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = {"vocab_size": 900, "min_frequency": 2, "initial_alphabet": BYTES, "special_tokens": special}
    return tokenizer, trainers.BpeTrainer(**{**trainer, **options}, show_progress=False)


def characters(limit: int | None = None) -> tuple[Tokenizer, Any]:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = split(GPT2)
    limited = {} if limit is None else {"limit_alphabet": limit}
    return tokenizer, trainers.BpeTrainer(
        vocab_size=900, min_frequency=2, special_tokens=["<unk>", *CHATML], show_progress=False, **limited
    )


def wordpiece(first: Sequence[str] = ()) -> tuple[Tokenizer, Any]:
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = as_bytes(cut=True)
    return tokenizer, trainers.WordPieceTrainer(
        vocab_size=900,
        min_frequency=2,
        initial_alphabet=BYTES,
        special_tokens=["<unk>", *CHATML, *first],
        show_progress=False,
    )


def unigram() -> tuple[Tokenizer, Any]:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = as_bytes(cut=True)
    return tokenizer, trainers.UnigramTrainer(
        vocab_size=900, initial_alphabet=BYTES, special_tokens=CHATML, show_progress=False
    )


# Options, and the library's own tokenizer and trainer.
CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "default": ({}, bpe),
    "llama3": (
        {"pre_tokenizer": "llama3"},
        lambda: bpe(sequence(split(LLAMA3), as_bytes(cut=False))),
    ),
    "qwen2": ({"pre_tokenizer": "qwen2"}, lambda: bpe(sequence(split(QWEN2), as_bytes(cut=False)))),
    "digits": (
        {"pre_tokenizer": "digits"},
        lambda: bpe(sequence(pre_tokenizers.Digits(individual_digits=True), as_bytes(cut=True))),
    ),
    "digits3": (
        {"pre_tokenizer": "digits3"},
        lambda: bpe(sequence(split(r"\p{N}{1,3}"), as_bytes(cut=True))),
    ),
    "none": ({"pre_tokenizer": "none"}, lambda: bpe(as_bytes(cut=False))),
    "nfc": ({"normalizer": "nfc"}, lambda: bpe(normalizer=normalizers.NFC())),
    "nfkc": ({"normalizer": "nfkc"}, lambda: bpe(normalizer=normalizers.NFKC())),
    "min_frequency": ({"min_frequency": 7}, lambda: bpe(min_frequency=7)),
    "max_token_length": ({"max_token_length": 3}, lambda: bpe(max_token_length=3)),
    "extra_special_tokens": ({"extra_special_tokens": ["<x>"]}, lambda: bpe(special=[*CHATML, "<x>"])),
    "characters": ({"alphabet": "characters", **WITH_UNKNOWN}, characters),
    "limit_alphabet": (
        {"alphabet": "characters", "limit_alphabet": 20, **WITH_UNKNOWN},
        lambda: characters(20),
    ),
    "wordpiece": ({"model": "wordpiece", **WITH_UNKNOWN}, wordpiece),
    "unigram": ({"model": "unigram"}, unigram),
}


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sample with digits and characters that NFC and NFKC change; no two characters are equally frequent at 20."""
    folder = tmp_path_factory.mktemp("sample")
    texts = [
        f"{text} {number} {number * 7919} cafe\u0301 ﬁn é {number % 5}½"
        for number, text in enumerate(made_up_texts(150, longest=60))
    ]
    pq.write_table(pa.table({"text": texts}), folder / "a.parquet")
    return folder


def texts_of(sample: Path) -> list[str]:
    return list(pq.read_table(sample / "a.parquet")["text"].to_pylist())


def trained(sample: Path, output_dir: Path, **changes: Any) -> Path:
    raw = {"output_dir": str(output_dir), "sample": str(sample), "vocabulary_size": 900, "held_out": 0}
    mill_of("train-tokenizer", TrainTokenizerConfig.parse({**raw, **changes}))
    return output_dir / "tokenizer"


def model_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text())["model"]
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_vocabulary_is_that_of_the_library(sample: Path, tmp_path: Path, case: str) -> None:
    options, own = CASES[case]
    model = model_of(trained(sample, tmp_path, **options))
    tokenizer, trainer = own()
    tokenizer.train_from_iterator([texts_of(sample)], trainer)
    expected = json.loads(tokenizer.to_str())["model"]
    if case == "wordpiece":
        # The library numbers pieces that continue a word in the order of a hash table, and breaks ties by number.
        plain = expected["vocab"].keys()
        assert len(model["vocab"].keys() & plain) > 0.95 * len(plain)
        tokenizer, trainer = wordpiece(
            sorted(piece for piece in plain if piece[:2] == "##" and len(piece) == 3)
        )
        tokenizer.train_from_iterator([texts_of(sample)], trainer)
        assert model["vocab"] == tokenizer.get_vocab()
    elif case == "unigram":
        # The library's scores, and the order of nearly equal ones, differ from process to process.
        scores, others = dict(model["vocab"]), dict(expected["vocab"])
        assert len(scores.keys() & others.keys()) >= 0.99 * len(others)
        assert all(abs(scores[piece] - others[piece]) < 0.1 for piece in scores.keys() & others.keys())
    else:
        assert (model["vocab"], model["merges"]) == (expected["vocab"], expected["merges"])
        assert len(model["vocab"]) > 300 or case == "limit_alphabet"


@pytest.mark.parametrize("case", ["default", "wordpiece", "characters", "limit_alphabet"])
def test_special_tokens_may_have_the_last_ids(sample: Path, tmp_path: Path, case: str) -> None:
    options, _ = CASES[case]
    first = Tokenizer.from_file(str(trained(sample, tmp_path / "first", **options) / "tokenizer.json"))
    folder = trained(sample, tmp_path / "last", special_tokens_place="last", **options)
    last = Tokenizer.from_file(str(folder / "tokenizer.json"))
    special = options.get("special_tokens", CHATML)
    size = first.get_vocab_size()
    assert [first.token_to_id(token) for token in special] == list(range(len(special)))
    assert [last.token_to_id(token) for token in special] == list(range(size - len(special), size))
    for text in [*texts_of(sample)[:20], "<|im_start|>user <|im_end|> #unknown ☃"]:
        assert last.encode(text).tokens == first.encode(text).tokens


def test_last_special_tokens_equal_those_added_after_training(sample: Path, tmp_path: Path) -> None:
    folder = trained(sample, tmp_path, special_tokens_place="last")
    tokenizer, trainer = bpe(special=[], vocab_size=897)
    tokenizer.train_from_iterator([texts_of(sample)], trainer)
    tokenizer.add_special_tokens(CHATML)
    found = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert found.get_vocab() == tokenizer.get_vocab()
    assert model_of(folder)["merges"] == json.loads(tokenizer.to_str())["model"]["merges"]


def test_the_special_tokens_of_unigram_may_be_last(sample: Path, tmp_path: Path) -> None:
    options = {"alphabet": "characters", "special_tokens_place": "last", **WITH_UNKNOWN}
    folder = trained(sample, tmp_path, model="unigram", **options)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    assert [tokenizer.token_to_id(token) for token in WITH_UNKNOWN["special_tokens"]] == list(
        range(size - 4, size)
    )
    assert tokenizer.encode("☃").ids == [size - 4]


@pytest.mark.parametrize("options", [{"model": "wordpiece"}, {"model": "unigram", "alphabet": "characters"}])
def test_the_unknown_token_comes_first_if_none_is_named(
    sample: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    folder = trained(sample, tmp_path / "default", **options)
    named = trained(sample, tmp_path / "named", **WITH_UNKNOWN, **options)
    found, other = (json.loads((path / "tokenizer_config.json").read_text()) for path in (folder, named))
    assert found == other and found["unk_token"] == "<unk>"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert [tokenizer.id_to_token(id_) for id_ in range(4)] == ["<unk>", *CHATML]
    assert tokenizer.encode("☃").ids[-1] == 0


def test_a_special_token_in_the_texts_is_one_token(tmp_path: Path) -> None:
    """The library's Unigram lists a text that it learned, and that is a special token, twice."""
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"text": ["<|im_end|> a <|im_end|>"] * 3}), tmp_path / "in" / "a.parquet")
    folder = trained(tmp_path / "in", tmp_path / "out", model="unigram", pre_tokenizer="none")
    vocabulary = [piece for piece, _ in model_of(folder)["vocab"]]
    assert vocabulary[:3] == CHATML and len(set(vocabulary)) == len(vocabulary)


@pytest.mark.parametrize("case", ["wordpiece", "limit_alphabet", "characters"])
def test_processes_agree(sample: Path, tmp_path: Path, case: str) -> None:
    """The library's WordPiece differs between processes; ours does not."""
    options = {"output_dir": "out", "sample": "s", "vocabulary_size": 900, **CASES[case][0]}
    code = (
        "import hashlib, json, sys; import pyarrow.parquet as pq\n"
        "from schemas.tokenizer import TrainTokenizerConfig; from tasks.tokenizer.learn import learn\n"
        "texts = pq.read_table(sys.argv[1])['text'].to_pylist()\n"
        "tokenizer = learn(lambda: [texts], TrainTokenizerConfig.parse(json.loads(sys.argv[2])))\n"
        "print(hashlib.sha256(tokenizer.to_str().encode()).hexdigest())"
    )
    command = [sys.executable, "-c", code, str(sample / "a.parquet"), json.dumps(options)]
    found = {subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)}
    assert len(found) == 1


def test_a_limited_alphabet_has_the_most_frequent_characters(sample: Path, tmp_path: Path) -> None:
    options, _ = CASES["limit_alphabet"]
    vocabulary = model_of(trained(sample, tmp_path, **options))["vocab"]
    counts = Counter("".join(texts_of(sample)))
    most = sorted(counts, key=lambda character: (-counts[character], character))[:20]
    assert {token for token in vocabulary if len(token) == 1} == set(most)


LOSSLESS = [
    "default", "llama3", "qwen2", "digits", "digits3", "none", "nfc", "nfkc", "min_frequency",
    "max_token_length", "extra_special_tokens", "unigram",
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_transformers_encodes_as_tokenizers_does(sample: Path, tmp_path: Path, case: str) -> None:
    from transformers import AutoTokenizer

    folder = trained(sample, tmp_path, **CASES[case][0])
    loaded = AutoTokenizer.from_pretrained(folder)
    own = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = difficult_texts()
    encoded = [one.ids for one in own.encode_batch(texts)]
    assert loaded(texts)["input_ids"] == encoded
    special = set(CASES[case][0].get("special_tokens", CHATML)) | set(
        CASES[case][0].get("extra_special_tokens", ())
    )
    assert {loaded.convert_ids_to_tokens(id_) for id_ in loaded.all_special_ids} == special
    assert len(loaded) == own.get_vocab_size()
    if case in LOSSLESS:
        form = {"nfc": "NFC", "nfkc": "NFKC"}.get(case)
        for text, ids in zip(texts, encoded, strict=True):
            expected = text if form is None else unicodedata.normalize(form, text)  # type: ignore[arg-type]
            assert loaded.decode(ids) == expected == own.decode(ids, skip_special_tokens=False)


def test_what_wordpiece_loses(sample: Path, tmp_path: Path) -> None:
    """A byte that no word of the sample went on with, a word of over 1,000 bytes, `##` at the start of a word."""
    folder = trained(sample, tmp_path, **CASES["wordpiece"][0])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    kept = 0
    known = set("".join(texts_of(sample)))
    for whole in difficult_texts():
        text = "".join(character for character in whole if character in known | {"#"})
        encoded = tokenizer.encode(text)
        words = [word for word, _ in as_bytes(cut=True).pre_tokenize_str(text)]
        if "<unk>" not in encoded.tokens and not any(word.startswith("##") for word in words):
            assert tokenizer.decode(encoded.ids, skip_special_tokens=False) == text
            kept += 1
    assert kept > 400
    for text in texts_of(sample):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.encode("a" * 1000).tokens.count("<unk>") == 0
    assert tokenizer.encode("a" * 1001).tokens == ["<unk>"]
    assert tokenizer.decode(tokenizer.encode("## a").ids) == " a"


@pytest.mark.parametrize("model", ["bpe", "unigram"])
def test_characters_come_back_if_they_are_known(sample: Path, tmp_path: Path, model: str) -> None:
    folder = trained(sample, tmp_path, model=model, **CASES["characters"][0])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    known = set("".join(texts_of(sample)))
    for text in [*texts_of(sample), *difficult_texts()]:
        rest = "".join(character for character in text if character in known)
        assert tokenizer.decode(tokenizer.encode(rest).ids) == rest
    tokens = tokenizer.encode("a☃b").tokens
    assert tokens == ["a", "<unk>" if model == "bpe" else "☃", "b"]
    assert tokenizer.encode("☃").ids == [0]


def test_the_decoder_is_that_of_the_pieces(sample: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(trained(sample, tmp_path) / "tokenizer.json"))
    assert isinstance(tokenizer.decoder, decoders.ByteLevel)


@pytest.mark.parametrize("case", ["default", "llama3", "nfkc", "none", "unigram", "wordpiece", "characters"])
def test_pack_sft_uses_it(sample: Path, tmp_path: Path, case: str) -> None:
    from support import chat, config_of, mill_serially, write_jsonl

    folder = trained(sample, tmp_path / "tok", **CASES[case][0])
    words = texts_of(sample)[0].split()[:6]
    source = write_jsonl(
        tmp_path / "chats.jsonl", [chat(f"{w} {n}", f"{w} {n}") for w in words for n in range(5)]
    )
    manifest, _ = mill_serially(config_of(tmp_path / "sft", source, folder))
    assert manifest.ledger.rows_used == 30
