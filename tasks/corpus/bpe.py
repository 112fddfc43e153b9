"""Training a byte-level BPE tokenizer, saved so that `transformers.AutoTokenizer` loads it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from schemas.errors import ConfigError, MissingExtraError
from tasks.store.atomic import write_file

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)

# ChatML, with generation blocks: the assistant's text and its end-of-turn token carry loss.
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.role == 'assistant' %}"
    "{%- generation %}{{- message.content + '<|im_end|>' }}{%- endgeneration %}"
    "{%- else %}{{- message.content + '<|im_end|>' }}{%- endif %}"
    "{{- '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def train_bpe(
    texts: Iterable[str],
    folder: Path,
    vocabulary_size: int,
    special_tokens: Sequence[str] = SPECIAL_TOKENS,
    chat_template: str = CHAT_TEMPLATE,
) -> int:
    """Train on a stream of texts and write `tokenizer.json` and `tokenizer_config.json`.

    Args:
        texts: read once.
        folder: where the two files go.
        vocabulary_size: special tokens and the 256 bytes included.
        special_tokens: the first is the padding token, the last ends a turn.
        chat_template: Jinja source.

    Returns:
        The size of the vocabulary, which is smaller than asked for when the texts run out of pairs.

    Raises:
        ConfigError: the vocabulary has no room for the bytes and the special tokens.
        MissingExtraError: tokenizers is not installed.
    """
    if vocabulary_size < 256 + len(special_tokens):
        raise ConfigError(
            f"a vocabulary of {vocabulary_size} cannot hold 256 bytes and {len(special_tokens)} special tokens",
            where="vocabulary_size",
        )
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError:
        raise MissingExtraError.of("tokenizers", "sft", "training a tokenizer") from None
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=list(special_tokens),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "eos_token": special_tokens[-1],
        "pad_token": special_tokens[0],
        "chat_template": chat_template,
    }
    write_file(folder / "tokenizer.json", tokenizer.to_str(pretty=True).encode())
    write_file(folder / "tokenizer_config.json", json.dumps(config, indent=2).encode() + b"\n")
    return int(tokenizer.get_vocab_size())
