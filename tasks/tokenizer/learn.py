"""Train a tokenizer: the same texts and options give the same vocabulary, except for the model unigram.

The trainers of `tokenizers` break ties by hash tables whose order changes with every process. Two of them can be made
exact. WordPiece numbers the pieces that continue a word as it meets them, so they are found first and declared in
order. A limited alphabet is cut off among characters of equal frequency, so it is chosen here, by code point. Unigram
adds up probabilities in changing order: its scores, and the ids of tokens of nearly equal score, differ from run to
run, and sometimes a token does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from schemas.tokenizer import Alphabet, Model, Place, TrainTokenizerConfig
from tasks.tokenizer.pipeline import CONTINUES, untrained

# Each call reads the sample once more, in batches.
Texts = Callable[[], Iterable[list[str]]]

_CODE_POINTS = 0x110000


def learn(texts: Texts, config: TrainTokenizerConfig) -> Any:
    """Train a tokenizer without a base.

    Args:
        texts: called once for bpe and unigram, twice for wordpiece, and once more for a limited alphabet.

    Returns:
        A `tokenizers.Tokenizer`; its vocabulary is smaller than requested if the texts run out of pairs.

    Raises:
        MissingExtraError: tokenizers is not installed.
    """
    # Counting words uses all cores inside one call; encoding turns this off, because it has threads of its own.
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    tokenizer = untrained(config)
    alphabet = _alphabet(texts, config)
    continuing = _continuing(texts, config, alphabet) if config.model is Model.WORDPIECE else []
    special = [*config.all_special_tokens, *continuing]
    tokenizer.train_from_iterator(texts(), _trainer(config, alphabet, special, config.vocabulary_size))
    if config.model is Model.UNIGRAM:
        tokenizer = _without_repeats(tokenizer)
    if continuing:
        tokenizer = _without_added(tokenizer, len(config.all_special_tokens))
    if config.special_tokens_place is Place.LAST:
        tokenizer = _specials_last(tokenizer, len(config.all_special_tokens))
    return tokenizer


def _trainer(config: TrainTokenizerConfig, alphabet: list[str], special: list[str], size: int) -> Any:
    from tokenizers import trainers

    common: dict[str, Any] = {
        "vocab_size": size,
        "special_tokens": special,
        "initial_alphabet": alphabet,
        "show_progress": False,
    }
    if config.model is Model.UNIGRAM:
        return trainers.UnigramTrainer(unk_token=config.unk, **common)
    if config.limit_alphabet is not None:
        common["limit_alphabet"] = len(alphabet)
    if config.model is Model.WORDPIECE:
        return trainers.WordPieceTrainer(
            min_frequency=config.merged_from, continuing_subword_prefix=CONTINUES, **common
        )
    return trainers.BpeTrainer(
        min_frequency=config.merged_from, max_token_length=config.max_token_length, **common
    )


def _alphabet(texts: Texts, config: TrainTokenizerConfig) -> list[str]:
    """Return what the vocabulary must have: all bytes, or the most frequent characters; else the trainer decides."""
    from tokenizers import pre_tokenizers

    if config.alphabet is Alphabet.BYTES:
        return sorted(pre_tokenizers.ByteLevel.alphabet())
    if config.limit_alphabet is None:
        return []
    normalizer = untrained(config).normalizer
    counts = np.zeros(_CODE_POINTS, np.int64)
    for batch in texts():
        if normalizer is not None:
            batch = [normalizer.normalize_str(text) for text in batch]
        codes = np.frombuffer("".join(batch).encode("utf-32-le"), np.uint32)
        counts += np.bincount(codes, minlength=_CODE_POINTS)
    # Stable: of characters with equal counts the first code points stay.
    most = np.argsort(-counts, kind="stable")[: config.limit_alphabet]
    return [chr(code) for code in sorted(most[counts[most] > 0].tolist())]


def _continuing(texts: Texts, config: TrainTokenizerConfig, alphabet: list[str]) -> list[str]:
    """Return the pieces of one character that continue a word, sorted: a vocabulary without room has no others."""
    tokenizer = untrained(config)
    tokenizer.train_from_iterator(texts(), _trainer(config, alphabet, [], 1))
    length = len(CONTINUES) + 1
    return sorted(
        token for token in tokenizer.get_vocab() if token.startswith(CONTINUES) and len(token) == length
    )


def _without_repeats(tokenizer: Any) -> Any:
    """Return the tokenizer without learned pieces that are special tokens: its trainer lists such a text twice."""
    description = json.loads(tokenizer.to_str())
    pieces: dict[str, float] = {}
    for piece, score in description["model"]["vocab"]:
        pieces.setdefault(piece, score)
    description["model"]["vocab"] = list(pieces.items())
    ids = {piece: id_ for id_, piece in enumerate(pieces)}
    for token in description["added_tokens"]:
        token["id"] = ids[token["content"]]
    return type(tokenizer).from_str(json.dumps(description))


def _without_added(tokenizer: Any, first: int) -> Any:
    """Return the tokenizer without its added tokens from id `first` on, which stay in the vocabulary."""
    description = json.loads(tokenizer.to_str())
    description["added_tokens"] = [token for token in description["added_tokens"] if token["id"] < first]
    return type(tokenizer).from_str(json.dumps(description))


def _specials_last(tokenizer: Any, count: int) -> Any:
    """Return the tokenizer with the last ids for its first `count` tokens, and the others moved up."""
    description = json.loads(tokenizer.to_str())
    model = description["model"]
    size = len(model["vocab"])
    if isinstance(model["vocab"], dict):
        model["vocab"] = {token: (id_ - count) % size for token, id_ in model["vocab"].items()}
    else:
        model["vocab"] = model["vocab"][count:] + model["vocab"][:count]
        if model["unk_id"] is not None:
            model["unk_id"] = (model["unk_id"] - count) % size
    for token in description["added_tokens"]:
        token["id"] = (token["id"] - count) % size
    return type(tokenizer).from_str(json.dumps(description))
