"""Load tokenizers once per process through transformers, and encode rendered pieces.

The pieces of a conversation are encoded separately, as when the model runs: first the prompt, then what the
model writes. If a template delimits turns by special tokens, the ids equal those of the whole text.

`TOKENIZERS_PARALLELISM=false` makes `encode_batch_fast` run on the calling thread. Python threads then scale
(1.9x on 2 cores), whereas `RAYON_NUM_THREADS=1` sends all threads through one pool thread (1.0x).
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.errors import ConfigError, IntegrityError, MissingExtraError
from schemas.sft import TokenizerConfig
from tasks.inputs.native import panics_are_errors
from tasks.sft.chat.escape import Escaper
from tasks.sft.chat.masks import Piece
from tasks.sft.chat.template import ChatTemplate
from tasks.sft.chat.tokenizer_source import TokenizerSource

# Characters that are encoded at once: what the tokenizer returns has 180 bytes for each.
_PORTION = 1 << 20


class TokenizerFailed(Exception):  # noqa: N818 - a reason for a row, not an error of the run
    """The tokenizer's native code failed or panicked on a text."""


@dataclass(frozen=True)
class Encoded:
    """Tokens of many samples.

    Attributes:
        tokens: int32[total], the samples one after another.
        trained: uint8[total], 1 where the token is trained.
        lengths: int64[num_samples].
    """

    tokens: NDArray[np.int32]
    trained: NDArray[np.uint8]
    lengths: NDArray[np.int64]


class ChatTokenizer:
    """A loaded tokenizer with its template and escaper.

    Attributes:
        template: the chat template.
        escaper: replaces special tokens in content.
        vocabulary_size: all ids are below this.
        eos_id: id of the end-of-sequence token, or `None`.
    """

    def __init__(self, source: TokenizerSource, config: TokenizerConfig) -> None:
        tokenizer = _load(source.folder)
        self._backend = tokenizer.backend_tokenizer
        self._backend.no_padding()
        self._backend.no_truncation()
        self._plain: Any = None
        self.vocabulary_size = len(tokenizer)
        self.eos_id: int | None = tokenizer.eos_token_id
        self.digest = source.digest
        template = source.chat_template or _own_template(tokenizer)
        variables = {**tokenizer.special_tokens_map, **config.template_kwargs}
        self.template = ChatTemplate(template, variables, config.date)
        self.template.check_terminates()
        self._added = {token.content: id_ for id_, token in tokenizer.added_tokens_decoder.items()}
        self.escaper = _escaper(tokenizer, template) if config.escape_special_tokens else Escaper(())
        # SentencePiece-style tokenizers put a space before a text, so "x" alone is not the token "x".
        self._adds_prefix = "".join(self._backend.encode("x", add_special_tokens=False).tokens) != "x"
        self._newline = self._backend.encode("\n", add_special_tokens=False).ids

    def encode(self, samples: Sequence[Sequence[Piece]]) -> Encoded:
        """Encode samples on the calling thread, with the GIL released.

        Raises:
            IntegrityError: a special token's text encodes to that token even as plain text.
            TokenizerFailed: native code failed on one of the texts.
        """
        pieces = [piece for sample in samples for piece in sample]
        arrays = [*map(_flat, self._ids(samples, pieces))]
        tokens = np.concatenate([tokens for tokens, _ in arrays])
        lengths = np.concatenate([lengths for _, lengths in arrays])
        flags = np.fromiter((piece.trained for piece in pieces), dtype=np.uint8, count=len(pieces))
        # Flat arrays from here on: samples are recovered from cumulative piece lengths, without a loop over tokens.
        per_sample = np.fromiter(map(len, samples), dtype=np.int64, count=len(samples))
        bounds = np.concatenate(([0], np.cumsum(per_sample)))
        ends = np.concatenate(([0], np.cumsum(lengths)))[bounds]
        return Encoded(tokens, np.repeat(flags, lengths), np.diff(ends))

    def _ids(self, samples: Sequence[Sequence[Piece]], pieces: list[Piece]) -> Iterator[list[list[int]]]:
        """Yield the ids of all pieces, in lists of pieces."""
        if not self._adds_prefix and not any(piece.literal for piece in pieces):
            # One call for many pieces: per-call overhead would dominate short messages.
            for texts in _portions(pieces):
                yield [e.ids for e in _native(self._backend.encode_batch_fast, texts)]
            return
        for sample in samples:
            for position, piece in enumerate(sample):
                guarded = (
                    self._adds_prefix and position > 0 and not self._ends_with_added(sample[position - 1])
                )
                yield [self._encode_one(piece, guarded)]

    def _encode_one(self, piece: Piece, guarded: bool) -> list[int]:
        backend = self._without_added_tokens() if piece.literal else self._backend
        if guarded:
            # After a newline no prefix space is added; the newline's ids are removed again.
            ids: list[int] = _native(backend.encode, "\n" + piece.text).ids
            if ids[: len(self._newline)] == self._newline:
                return ids[len(self._newline) :]
        ids = _native(backend.encode, piece.text).ids
        if piece.literal and self._added.get(piece.text) in ids:
            raise IntegrityError(
                f"the special token {piece.text!r} cannot be escaped: this tokenizer produces it from plain text; "
                "set tokenizer.escape_special_tokens: false",
                code="unescapable",
                where="tokenizer.path",
            )
        return ids

    def _ends_with_added(self, piece: Piece) -> bool:
        return not piece.literal and piece.text.endswith(tuple(self._added))

    def _without_added_tokens(self) -> Any:
        if self._plain is None:
            from tokenizers import Tokenizer

            description = json.loads(self._backend.to_str())
            description["added_tokens"] = []
            description["post_processor"] = None
            self._plain = Tokenizer.from_str(json.dumps(description))
        return self._plain


# Prevent two tasks of one process from both spending a second on loading the same tokenizer.
_LOADING = threading.Lock()


def _native(encode: Callable[..., Any], text: Any) -> Any:
    try:
        with panics_are_errors():
            return encode(text, add_special_tokens=False)
    except Exception as error:
        raise TokenizerFailed(str(error)) from error


def _portions(pieces: list[Piece]) -> Iterator[list[str]]:
    """Yield the texts of the pieces, one or up to `_PORTION` characters at a time."""
    texts: list[str] = []
    characters = 0
    for piece in pieces:
        characters += len(piece.text)
        if texts and characters > _PORTION:
            yield texts
            texts, characters = [], len(piece.text)
        texts.append(piece.text)
    yield texts


def _flat(ids: list[list[int]]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    lengths = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))
    tokens = np.fromiter(itertools.chain.from_iterable(ids), dtype=np.int32, count=int(lengths.sum()))
    return tokens, lengths


@functools.lru_cache(maxsize=4)
def _load(folder: str) -> Any:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    # Only tokenizers are used; without this, transformers warns about missing deep-learning libraries.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise MissingExtraError.of("transformers", "sft", "pack-sft") from None
    try:
        with panics_are_errors():
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise ConfigError(
            f"transformers cannot load this tokenizer: {error}", code="bad_tokenizer", where="tokenizer.path"
        ) from error
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigError(
            f"{type(tokenizer).__name__} is not a fast tokenizer; pack-sft needs a tokenizer.json",
            code="bad_tokenizer",
            where="tokenizer.path",
        )
    return tokenizer


def _own_template(tokenizer: Any) -> str:
    try:
        source = tokenizer.get_chat_template()
    except ValueError:
        source = None
    if not source:
        raise ConfigError(
            "the tokenizer has no chat template; set tokenizer.chat_template",
            code="missing_template",
            where="tokenizer.chat_template",
        )
    return str(source)


def _escaper(tokenizer: Any, template: str) -> Escaper:
    added = tokenizer.added_tokens_decoder.values()
    special = {token.content for token in added if token.special} | set(tokenizer.all_special_tokens)
    control = {token.content for token in added if not token.special and token.content in template}
    return Escaper(special, control)


def load_tokenizer(source: TokenizerSource, config: TokenizerConfig) -> ChatTokenizer:
    """Return the tokenizer of this process, loaded once.

    Raises:
        ConfigError: `bad_tokenizer`, `missing_template` or `bad_template`.
        MissingExtraError: transformers is not installed.
    """
    with _LOADING:
        return _loaded(source, config.model_dump_json())


@functools.lru_cache(maxsize=4)
def _loaded(source: TokenizerSource, config_json: str) -> ChatTokenizer:
    return ChatTokenizer(source, TokenizerConfig.model_validate_json(config_json))
