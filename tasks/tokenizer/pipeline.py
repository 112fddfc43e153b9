r"""Build an untrained tokenizer: how texts are normalised, cut into words, encoded and decoded.

No token crosses a word. The patterns are those of the models they are named after:

* `gpt2`: `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`;
* `llama3`: `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|
  \s+(?!\S)|\s+`, without the line break; `qwen2`: the same with `\p{N}` instead of `\p{N}{1,3}`;
* `digits`: every `\p{N}` is a word, `digits3`: `\p{N}{1,3}` from the left; what lies between is cut as by `gpt2`.

Over bytes, each byte is written as one of 256 visible characters, as GPT-2 does, so that every text can be encoded
and comes back exactly. Over characters the tokens are plain text.
"""

from __future__ import annotations

from typing import Any

from schemas.errors import MissingExtraError
from schemas.tokenizer import Alphabet, Model, Normalizer, PreTokenizer, TrainTokenizerConfig

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

# Before a piece of WordPiece that continues a word. transformers' whole-word masking looks for it.
CONTINUES = "##"
# 100 by default, which a line of Chinese exceeds in bytes; the cost of a word grows with the square of its length.
_LONGEST_WORD = 1000


def untrained(config: TrainTokenizerConfig) -> Any:
    """Return a `tokenizers.Tokenizer` with an empty model.

    Raises:
        MissingExtraError: tokenizers is not installed.
    """
    try:
        from tokenizers import Tokenizer, normalizers
    except ImportError:
        raise MissingExtraError.of("tokenizers", "sft", "training a tokenizer") from None
    tokenizer = Tokenizer(_model(config))
    if config.normalizer is not Normalizer.NONE:
        forms = {Normalizer.NFC: normalizers.NFC, Normalizer.NFKC: normalizers.NFKC}
        tokenizer.normalizer = forms[config.normalizer]()
    cut = _pre_tokenizer(config)
    if cut is not None:
        tokenizer.pre_tokenizer = cut
    tokenizer.decoder = _decoder(config)
    return tokenizer


def _model(config: TrainTokenizerConfig) -> Any:
    from tokenizers import models

    if config.model is Model.UNIGRAM:
        # Its trainer is given the unknown token.
        return models.Unigram()
    if config.model is Model.WORDPIECE:
        return models.WordPiece(unk_token=config.unk, max_input_chars_per_word=_LONGEST_WORD)
    return models.BPE(unk_token=config.unk) if config.unk else models.BPE()


def _pre_tokenizer(config: TrainTokenizerConfig) -> Any:
    from tokenizers import Regex, pre_tokenizers

    def split(pattern: str) -> Any:
        return pre_tokenizers.Split(Regex(pattern), "isolated")

    as_bytes = config.alphabet is Alphabet.BYTES
    like_gpt2 = split(GPT2)
    if as_bytes:
        # Its own pattern is the same, and written shorter.
        like_gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    steps = {
        PreTokenizer.GPT2: [like_gpt2],
        PreTokenizer.LLAMA3: [split(LLAMA3)],
        PreTokenizer.QWEN2: [split(QWEN2)],
        PreTokenizer.DIGITS: [pre_tokenizers.Digits(individual_digits=True), like_gpt2],
        PreTokenizer.DIGITS3: [split(r"\p{N}{1,3}"), like_gpt2],
        PreTokenizer.NONE: [],
    }[config.pre_tokenizer]
    if as_bytes and like_gpt2 not in steps:
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    if len(steps) > 1:
        return pre_tokenizers.Sequence(steps)
    return steps[0] if steps else None


def _decoder(config: TrainTokenizerConfig) -> Any:
    from tokenizers import Regex, decoders

    join = decoders.ByteLevel() if config.alphabet is Alphabet.BYTES else decoders.Fuse()
    if config.model is Model.WORDPIECE:
        return decoders.Sequence([decoders.Replace(Regex(f"^{CONTINUES}"), ""), join])
    return join
