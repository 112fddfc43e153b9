"""Tokenizer training: configuration, and the default special tokens and chat template."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated

from pydantic import Field, model_validator

from schemas.alarms import RejectAlarms, alarms_field
from schemas.config import LARGEST, Config, by_content
from schemas.fields import (
    max_reject_fraction_field,
    output_dir_field,
    seed_field,
    template_field,
    text_field,
    workers_field,
)

FLOW = "train-tokenizer"
# Enters every hash; raised when the same configuration would give other bytes, defaults included.
FORMAT_VERSION = 1

TOKENIZER = "tokenizer"
REPORT = "report.json"
# The path to set as pack-sft's tokenizer.path.
PUBLISHED = {TOKENIZER: f"latest/{TOKENIZER}"}

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"

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

_BYTES = 256


class TrainTokenizerConfig(Config):
    """Train a byte-level BPE tokenizer on a sample."""

    output_dir: str = output_dir_field()
    sample: str = by_content(
        ...,
        min_length=1,
        title="Sample",
        description="A run or output folder of sample-corpus, or any folder of Parquet files with a text column.",
    )
    vocabulary_size: int = Field(
        64_000,
        ge=_BYTES,
        le=2**24,
        title="Vocabulary size",
        description="Tokens, including bytes and special tokens.",
    )
    min_frequency: int = Field(
        2,
        ge=1,
        le=LARGEST,
        title="Minimum frequency",
        description="Pairs that occur less often are not merged.",
    )
    special_tokens: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (END_OF_TEXT, TURN_START, TURN_END),
        min_length=1,
        title="Special tokens",
        description="They get the first ids, in this order.",
        json_schema_extra={"uniqueItems": True},
    )
    eos_token: str = text_field(TURN_END, "End of sequence", "One of the special tokens.")
    pad_token: str = text_field(END_OF_TEXT, "Padding", "One of the special tokens.")
    chat_template: str = template_field(CHAT_TEMPLATE, "A template file, or the template itself.")
    held_out: float = Field(
        0.01,
        ge=0,
        lt=1,
        title="Held out",
        description="Share of rows held back from training for measurement.",
    )
    seed: int = seed_field("Decides which rows are held out.")
    max_reject_fraction: float = max_reject_fraction_field()
    alarms: RejectAlarms | None = alarms_field()
    workers: int = workers_field()

    @property
    def subject(self) -> str:
        return f"{PurePath(self.sample).name or self.sample} {self.vocabulary_size}"

    @model_validator(mode="after")
    def _tokens_fit(self) -> TrainTokenizerConfig:
        tokens = self.special_tokens
        if len(set(tokens)) != len(tokens) or not all(tokens):
            raise ValueError(f"special_tokens must be distinct and not empty, got {list(tokens)}")
        for field, token in (("eos_token", self.eos_token), ("pad_token", self.pad_token)):
            if token not in tokens:
                raise ValueError(f"{field} {token!r} must be one of special_tokens {list(tokens)}")
        if self.vocabulary_size < _BYTES + len(tokens):
            raise ValueError(
                f"a vocabulary of {self.vocabulary_size} is below {_BYTES} bytes plus {len(tokens)} special tokens"
            )
        return self
