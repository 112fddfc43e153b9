"""Train a byte-level BPE tokenizer, and save it so that `transformers.AutoTokenizer` loads it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from schemas.errors import MissingExtraError
from schemas.run import FileRecord
from schemas.tokenizer import CHAT_TEMPLATE, END_OF_TEXT, TURN_END, TURN_START
from tasks.storage.atomic import write_file

SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)


def train_bpe(
    texts: Iterable[str] | Iterable[list[str]],
    vocabulary_size: int,
    special_tokens: Sequence[str] = SPECIAL_TOKENS,
    min_frequency: int = 2,
) -> Any:
    """Train on a stream of texts, or of lists of texts, which is read once.

    Args:
        vocabulary_size: number of tokens, including special tokens and the 256 bytes; the vocabulary is smaller if
            the texts run out of pairs.
        special_tokens: get the first ids.
        min_frequency: pairs seen less often are not merged.

    Returns:
        A `tokenizers.Tokenizer`.

    Raises:
        MissingExtraError: tokenizers is not installed.
    """
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError:
        raise MissingExtraError.of("tokenizers", "sft", "training a tokenizer") from None
    # Counting words uses all cores inside one call; encoding turns this off, because it has threads of its own.
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        min_frequency=min_frequency,
        special_tokens=list(special_tokens),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(
    tokenizer: Any,
    folder: Path,
    root: Path,
    chat_template: str = CHAT_TEMPLATE,
    eos_token: str = TURN_END,
    pad_token: str = END_OF_TEXT,
) -> list[FileRecord]:
    """Write `tokenizer.json` and `tokenizer_config.json`; return their records relative to `root`."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "eos_token": eos_token,
        "pad_token": pad_token,
        "chat_template": chat_template,
    }
    contents = {
        "tokenizer.json": tokenizer.to_str(pretty=True),
        "tokenizer_config.json": json.dumps(config, indent=2) + "\n",
    }
    return [write_file(folder / name, content.encode()).record(root) for name, content in contents.items()]
