"""Tokenizer training: configuration, and the default special tokens and chat template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import Field, model_validator

from schemas.alarms import RejectAlarms, alarms_field
from schemas.config import LARGEST, Config, by_content
from schemas.fields import (
    max_reject_fraction_field,
    output_dir_field,
    seed_field,
    template_field,
    workers_field,
)

FLOW = "train-tokenizer"
# Enters every hash; raised when the same configuration would give other bytes, defaults included.
FORMAT_VERSION = 2

TOKENIZER = "tokenizer"
REPORT = "report.json"
# The path to set as pack-sft's tokenizer.path.
PUBLISHED = {TOKENIZER: f"latest/{TOKENIZER}"}

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
UNKNOWN = "<unk>"

# ChatML, with generation blocks: the assistant's text, its tool calls and its end-of-turn token carry loss. A content
# may be a text, a list of text parts, or null. Tools and tool calls are written as Hermes and Qwen write them.
CHAT_TEMPLATE = r"""
{%- macro text(content) %}
    {%- if content is string %}
        {{- content }}
    {%- elif content %}
        {%- for part in content %}
            {%- if part is string %}
                {{- part }}
            {%- elif part.text is string %}
                {{- part.text }}
            {%- else %}
                {{- raise_exception('a content part of type ' ~ part.type ~ ' is not text') }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- macro calls(message, content) %}
    {%- for call in message.tool_calls or [] %}
        {%- set function = call.function or call %}
        {%- set arguments = function.arguments or {} %}
        {%- if content or not loop.first %}
            {{- '\n' }}
        {%- endif %}
        {{- '<tool_call>\n{"name": ' + function.name | tojson + ', "arguments": ' }}
        {{- arguments if arguments is string else arguments | tojson }}
        {{- '}\n</tool_call>' }}
    {%- endfor %}
{%- endmacro %}
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages and messages[0].role == 'system' %}
        {{- text(messages[0].content) + '\n\n' }}
    {%- endif %}
    {{- '# Tools\n\nYou may call one or more of these functions:\n<tools>' }}
    {%- for tool in tools %}
        {{- '\n' + tool | tojson }}
    {%- endfor %}
    {{- '\n</tools>\n\nTo call one, answer with its name and arguments as JSON:\n<tool_call>\n' }}
    {{- '{"name": <function name>, "arguments": <arguments>}\n</tool_call><|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if not (tools and loop.first and message.role == 'system') %}
        {{- '<|im_start|>' + message.role + '\n' }}
        {%- set content = text(message.content) %}
        {%- if message.role == 'assistant' %}
            {%- generation %}{{- content + calls(message, content) + '<|im_end|>' }}{%- endgeneration %}
        {%- else %}
            {{- content + '<|im_end|>' }}
        {%- endif %}
        {{- '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
""".strip()

_BYTES = 256
_MIN_FREQUENCY = 2


class PreTokenizer(StrEnum):
    """How a text is cut into words, which no token crosses."""

    GPT2 = "gpt2"
    LLAMA3 = "llama3"
    QWEN2 = "qwen2"
    DIGITS = "digits"
    DIGITS3 = "digits3"
    NONE = "none"


class Normalizer(StrEnum):
    """The Unicode form that a text is brought into before it is cut."""

    NONE = "none"
    NFC = "nfc"
    NFKC = "nfkc"


class Model(StrEnum):
    """The models of `tokenizers` that can be trained."""

    BPE = "bpe"
    UNIGRAM = "unigram"
    WORDPIECE = "wordpiece"


class Alphabet(StrEnum):
    """What the tokens are made of."""

    BYTES = "bytes"
    CHARACTERS = "characters"


class Place(StrEnum):
    """Which ids the special tokens get."""

    FIRST = "first"
    LAST = "last"


_Token = Annotated[str, Field(min_length=1)]


class TrainTokenizerConfig(Config):
    """Train a tokenizer on a sample."""

    output_dir: str = output_dir_field()
    sample: str = by_content(
        ...,
        min_length=1,
        title="Sample",
        description="A run or output folder of sample-corpus, or any folder of Parquet files with a text column.",
    )
    vocabulary_size: int = Field(
        64_000,
        ge=1,
        le=2**24,
        title="Vocabulary size",
        description="Tokens, including the alphabet (256 bytes by default) and special tokens.",
    )
    model: Model = Field(Model.BPE, title="Model", description="How the vocabulary is learned.")
    pre_tokenizer: PreTokenizer = Field(
        PreTokenizer.GPT2,
        title="Words",
        description="How a text is cut into words, which no token crosses. gpt2, llama3, qwen2: by the pattern of "
        "that model (llama3 takes up to three digits together, qwen2 one); digits, digits3: digits one by one or in "
        "groups of three, all else as gpt2; none: not at all.",
    )
    normalizer: Normalizer = Field(
        Normalizer.NONE,
        title="Unicode form",
        description="Form that texts are brought into before they are cut; none: as they are.",
    )
    alphabet: Alphabet = Field(
        Alphabet.BYTES,
        title="Alphabet",
        description="What tokens are made of. bytes: every text can be encoded; characters: those of the sample, and "
        "unk_token for others.",
    )
    limit_alphabet: int | None = Field(
        None,
        ge=1,
        le=LARGEST,
        title="Largest alphabet",
        description="Keep only the most frequent characters, this many; for alphabet characters, without a base.",
    )
    min_frequency: int | None = Field(
        None,
        ge=0,
        le=LARGEST,
        title="Minimum frequency",
        description="Pairs that occur less often are not merged; by default 2, with a base 0. Not for unigram.",
    )
    max_token_length: int | None = Field(
        None,
        ge=1,
        le=LARGEST,
        title="Longest token",
        description="Bytes (or characters, for that alphabet) of the longest token; only for bpe.",
    )
    special_tokens: tuple[_Token, ...] = Field(
        (END_OF_TEXT, TURN_START, TURN_END),
        min_length=1,
        title="Special tokens",
        description="They get consecutive ids, in this order.",
        json_schema_extra={"uniqueItems": True},
    )
    extra_special_tokens: tuple[_Token, ...] = Field(
        (),
        title="More special tokens",
        description="They follow special_tokens or, with a base, its own special tokens.",
        json_schema_extra={"uniqueItems": True},
    )
    special_tokens_place: Place = Field(
        Place.FIRST,
        title="Place of special tokens",
        description="Whether they get the first or the last ids.",
    )
    eos_token: str | None = Field(
        None,
        min_length=1,
        title="End of sequence",
        description=f"One of the special tokens; by default {TURN_END} or, with a base, its own.",
    )
    pad_token: str | None = Field(
        None,
        min_length=1,
        title="Padding",
        description=f"One of the special tokens; by default {END_OF_TEXT} or, with a base, its own.",
    )
    unk_token: str | None = Field(
        None,
        min_length=1,
        title="Unknown",
        description="One of the special tokens, for what the vocabulary cannot spell, with wordpiece or alphabet "
        f"characters; by default {UNKNOWN}, before the others. Elsewhere nothing is unknown.",
    )
    base: str | None = by_content(
        None,
        min_length=1,
        title="Base",
        description="A tokenizer, as a folder or a hub id: train with its model, its rules for cutting words and its "
        "special tokens, as train_new_from_iterator of transformers does.",
    )
    base_revision: str | None = by_content(
        None, min_length=1, title="Revision of the base", description="Commit or tag; required for a hub id."
    )
    chat_template: str | None = template_field(
        None,
        "A template file, or the template itself; by default ChatML with tools or, with a base, its own.",
    )
    held_out: float = Field(
        0.01,
        ge=0,
        lt=1,
        title="Held out",
        description="Share of rows held back from training for measurement.",
    )
    compare_with: str | None = by_content(
        None,
        min_length=1,
        title="Compare with",
        description="A tokenizer, as a folder or a hub id; its bytes per token are reported next to the new one's.",
    )
    compare_revision: str | None = by_content(
        None,
        min_length=1,
        title="Revision to compare with",
        description="Commit or tag; required for a hub id.",
    )
    seed: int = seed_field("Decides which rows are held out.")
    max_reject_fraction: float = max_reject_fraction_field()
    alarms: RejectAlarms | None = alarms_field()
    workers: int = workers_field()

    @property
    def subject(self) -> str:
        return f"{PurePath(self.sample).name or self.sample} {self.vocabulary_size}"

    @property
    def all_special_tokens(self) -> tuple[str, ...]:
        """The special tokens in the order of their ids; of a base, only those to add to its own."""
        if self.base:
            return self.extra_special_tokens
        listed = self.special_tokens + self.extra_special_tokens
        is_default = self.unk is not None and self.unk_token is None and self.unk not in listed
        return (UNKNOWN, *listed) if is_default else listed

    @property
    def eos(self) -> str | None:
        """The end-of-sequence token; `None`: that of the base."""
        return self.eos_token or (None if self.base else TURN_END)

    @property
    def pad(self) -> str | None:
        """The padding token; `None`: that of the base."""
        return self.pad_token or (None if self.base else END_OF_TEXT)

    @property
    def unk(self) -> str | None:
        """The unknown token; `None`: nothing is unknown, or the base decides."""
        if self.base or not self.may_be_unknown:
            return self.unk_token
        return self.unk_token or UNKNOWN

    @property
    def may_be_unknown(self) -> bool:
        """Whether there are texts that the vocabulary cannot spell."""
        return self.alphabet is Alphabet.CHARACTERS or self.model is Model.WORDPIECE

    @property
    def merged_from(self) -> int:
        """How often a pair must occur to be merged; not for a base."""
        return _MIN_FREQUENCY if self.min_frequency is None else self.min_frequency

    @model_validator(mode="after")
    def _fits_together(self) -> TrainTokenizerConfig:
        fault = next(_of_the_base(self) if self.base else _of_the_model(self), None)
        fault = fault or next(_of_measuring(self), None)
        if fault is not None:
            raise ValueError(fault)
        return self


def _of_the_base(config: TrainTokenizerConfig) -> Iterator[str]:
    """Describe options that are set although they come from the base or do not work with one."""
    fields = (
        "model",
        "pre_tokenizer",
        "normalizer",
        "alphabet",
        "special_tokens",
        "special_tokens_place",
        "unk_token",
    )
    for name in fields:
        value = getattr(config, name)
        if value != type(config).model_fields[name].default:
            hint = "; add tokens as extra_special_tokens" if name == "special_tokens" else ""
            yield f"{name} comes from the base, so remove {name} or base{hint}"
    if config.limit_alphabet is not None:
        # Its trainer cuts the alphabet off among characters of equal frequency, differently in every process.
        yield "limit_alphabet cannot be set with a base; remove limit_alphabet or base"
    if len(set(config.extra_special_tokens)) != len(config.extra_special_tokens):
        yield f"extra_special_tokens must be distinct, got {list(config.extra_special_tokens)}"


def _of_the_model(config: TrainTokenizerConfig) -> Iterator[str]:
    """Describe options that a model does not have, tokens that are not declared, and a vocabulary without room."""
    model, characters = config.model, config.alphabet is Alphabet.CHARACTERS
    tokens = config.all_special_tokens
    if len(set(tokens)) != len(tokens):
        yield f"special_tokens must be distinct, with extra_special_tokens; got {list(tokens)}"
    named = (("eos_token", config.eos), ("pad_token", config.pad), ("unk_token", config.unk))
    for field, token in named:
        if token is not None and token not in tokens:
            yield f"{field} {token!r} must be one of special_tokens {list(tokens)}"
    if config.base_revision is not None:
        yield "base_revision needs a base"
    if config.max_token_length is not None and model is not Model.BPE:
        yield f"max_token_length has no effect on the model {model}; it is an option of bpe"
    if config.min_frequency is not None and model is Model.UNIGRAM:
        yield "min_frequency has no effect on the model unigram; it is an option of bpe and wordpiece"
    if config.limit_alphabet is not None and (not characters or model is Model.UNIGRAM):
        yield "limit_alphabet needs alphabet: characters, and the model bpe or wordpiece"
    if config.pre_tokenizer is PreTokenizer.NONE and model is Model.WORDPIECE:
        yield "pre_tokenizer none makes a whole text one word, which wordpiece cannot encode; choose another"
    if config.unk_token is not None and not config.may_be_unknown:
        yield f"unk_token has no effect on the model {model} over bytes, which can encode every text; remove it"
    alphabet = 1 if characters else _BYTES
    if config.vocabulary_size < alphabet + len(tokens):
        what = "one character" if characters else f"{_BYTES} bytes"
        yield f"vocabulary_size {config.vocabulary_size} is below {what} plus {len(tokens)} special tokens"


def _of_measuring(config: TrainTokenizerConfig) -> Iterator[str]:
    if config.compare_revision is not None and config.compare_with is None:
        yield "compare_revision needs compare_with"
    if config.compare_with is not None and not config.held_out:
        yield "compare_with needs held_out above 0: bytes per token are measured on rows held out"


def measured(bucket: Mapping[str, Any]) -> str:
    """Say what was measured on the rows that one bucket held out.

    Args:
        bucket: an entry of the statistic `bytes_per_token`.
    """
    trained = f"trained on {bucket['trained_rows']:,} rows"
    if not bucket["held_out_rows"]:
        return f"{trained}; no row was held out, so bytes per token were not measured"
    if bucket["bytes_per_token"] is None:
        return f"{trained}; the {bucket['held_out_rows']:,} rows held out are empty texts"
    other = bucket.get("compared_bytes_per_token")
    compared = f" ({other} with the compared tokenizer)" if other is not None else ""
    rows = f"{bucket['held_out_rows']:,} held-out rows"
    return f"{bucket['bytes_per_token']} bytes per token{compared} on {rows}, {trained}"
