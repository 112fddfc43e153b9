"""SFT packing: configuration, the Arrow schema of a packed shard, and its invariants.

A packed shard has one row per bin:

* `input_ids list<int32>`: the tokens of the bin's sequences, one after another.
* `loss_mask list<uint8>`: the same length as `input_ids`, shifted left by one inside each sequence: entry `j` says
  whether the *label* of position `j`, token `j + 1`, is trained. A sequence's last entry is 0.
* `seq_start_id list<int32>`: where each sequence starts; first 0, strictly increasing.

The consumer of sequence `[s, e)` trains labels `ids[s+1:e]` under `loss_mask[s:e-1]`. Its *runtime length* is
therefore one token less than the stored length.
"""

from __future__ import annotations

import datetime
import math
from enum import StrEnum
from typing import Any

from pydantic import ConfigDict, Field, field_validator, model_validator

from schemas.alarms import PackAlarms, alarms_field
from schemas.canonical import canonical_json
from schemas.config import LARGEST, Config, by_content, execution_only, few
from schemas.fields import (
    GZIP_LEVELS,
    compression_level_field,
    max_reject_fraction_field,
    output_dir_field,
    seed_field,
    template_field,
    workers_field,
)
from schemas.sft_fields import Dialect, FieldMapping

FLOW = "pack-sft"
# Enters every hash; raised when the same configuration would give other bytes, defaults included.
FORMAT_VERSION = 3

# What trainers open: names at the top of the output directory, and their targets.
BLEND = "blend.json"
SPLITS = "splits"
# Which row every sequence came from; beside the folders that trainers open.
PROVENANCE = "provenance"
PUBLISHED = {BLEND: "latest/blend.json", SPLITS: "latest/splits"}

METADATA_VERSION = b"gristmill.format_version"
METADATA_PACK_SIZE = b"gristmill.pack_size"
METADATA_COUNT = b"gristmill.count"
METADATA_TOKENIZER = b"gristmill.tokenizer_sha256"
METADATA_VOCABULARY = b"gristmill.vocabulary_size"
# SHA-256 of what precedes it in an npy shard; in a memmap shard, of each array, with its name after a dot.
METADATA_SHA256 = "gristmill.sha256"

# Letters, digits and "_", then also "." and "-", but never "..".
DATASET_NAME = r"^[A-Za-z0-9_](\.?[A-Za-z0-9_-])*\.?$"
SPLIT_NAMES = ("train", "valid", "test")
# A worker encodes up to 4 MiB and one row at once, about 200 bytes of memory a byte: 1.2 GB at most.
MAX_ROW_BYTES = 2**21
# The arguments a chat template gets for each conversation.
_GROUP_TOKENS = 1 << 20
_RENDER_ARGUMENTS = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


class TrainOn(StrEnum):
    """Which tokens carry loss."""

    ASSISTANT = "assistant"
    LAST_TURN = "last_turn"
    ALL = "all"


class Order(StrEnum):
    """How sequences are placed into bins."""

    SHUFFLED = "shuffled"
    DECREASING = "decreasing"


class Count(StrEnum):
    """How a sequence of L stored tokens counts against the pack size."""

    RUNTIME = "runtime"
    STORED = "stored"


class Overflow(StrEnum):
    """What happens to a sequence longer than the pack size."""

    TRUNCATE = "truncate"
    DROP = "drop"
    SPLIT = "split"


class Mix(StrEnum):
    """What `splits/train` holds of each data set."""

    NATURAL = "natural"
    DOWNSAMPLE = "downsample"
    UPSAMPLE = "upsample"


class Compression(StrEnum):
    """Parquet compression codecs."""

    ZSTD = "zstd"
    SNAPPY = "snappy"
    GZIP = "gzip"
    NONE = "none"


class StorageFormat(StrEnum):
    """Formats a packed shard can be stored in."""

    PARQUET = "parquet"
    MEMMAP = "memmap"
    NPY = "npy"


class DatasetConfig(Config):
    """One source of conversations."""

    name: str = Field(
        pattern=DATASET_NAME,
        max_length=100,
        title="Name",
        description="Unique name of at most 100 characters. It becomes a folder name: only letters, digits, "
        "'.', '_' and '-' are allowed, and no '..'.",
    )
    path: str = by_content(
        ...,
        min_length=1,
        title="Path",
        description="A .jsonl, .jsonl.gz, .jsonl.zst or .parquet file, a folder of them, or a glob.",
    )
    weight: float = Field(
        1.0,
        gt=0,
        le=1e9,
        title="Weight",
        description="Relative weight in blend.json; greater than 0, at most 1e9.",
    )
    dialect: Dialect = Field(
        Dialect.AUTO,
        title="Dialect",
        description="Layout of the conversation in a row; auto decides row by row.",
    )
    fields: FieldMapping = Field(
        default_factory=FieldMapping,
        title="Fields",
        description="Names of the fields, if not the usual ones.",
    )
    where: dict[str, str | int | bool] = Field(
        default_factory=dict,
        title="Row filter",
        description="Keep only rows in which the field equals the value or is a list that contains it.",
    )


class TokenizerConfig(Config):
    """The tokenizer and its chat template."""

    path: str = by_content(
        ...,
        min_length=1,
        title="Tokenizer",
        description="A local folder with tokenizer.json, or a hub id (which needs a revision).",
    )
    revision: str | None = by_content(
        None,
        min_length=1,
        title="Revision",
        description="Commit or tag of the hub id; required for hub ids.",
    )
    chat_template: str | None = template_field(
        None, "A template file, or the template itself. Leave empty to use the tokenizer's own."
    )
    template_kwargs: dict[str, Any] = Field(
        default_factory=dict,
        title="Template variables",
        description="Additional variables for the template, for example enable_thinking: false.",
    )
    date: datetime.date | None = Field(
        None,
        title="Template date",
        description="The date that strftime_now formats in templates that print one. Without it the function is "
        "undefined, because today's date would make every run different.",
    )
    escape_special_tokens: bool = Field(
        True,
        title="Escape special tokens",
        description="Encode special tokens inside message content as plain text.",
    )

    check_template: bool = execution_only(
        True,
        title="Check the template",
        description="Stop before tokenizing if the template drops a text, a call or the last reasoning of one of the "
        "first conversations, or does not train its answers.",
    )

    @field_validator("template_kwargs")
    @classmethod
    def _plain_variables(cls, variables: dict[str, Any]) -> dict[str, Any]:
        taken = sorted(_RENDER_ARGUMENTS & variables.keys())
        if taken:
            raise ValueError(f"{', '.join(taken)} is set for each conversation and cannot be set here")
        try:
            canonical_json(variables)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"only JSON values are allowed here: {error}; put dates in quotes") from None
        return variables


class PackConfig(Config):
    """How sequences are packed into bins."""

    size: int = Field(
        4096, ge=2, le=2**24, title="Pack size", description="Largest number of tokens in a bin."
    )
    order: Order = Field(
        Order.SHUFFLED,
        title="Order",
        description="shuffled: mix lengths in every bin; decreasing: pack the longest sequences first.",
    )
    count: Count = Field(
        Count.RUNTIME,
        title="Count",
        description="runtime: count a sequence as the trainer does, one token less than stored; "
        "stored: count every stored token.",
    )
    overflow: Overflow = Field(
        Overflow.TRUNCATE,
        title="Overflow",
        description="What to do with a conversation that is longer than a bin: truncate, drop or split it.",
    )
    pad_to_multiple: int = Field(
        1,
        ge=1,
        le=2**16,
        title="Pad to multiple",
        description="Pad each sequence with the end-of-sequence token until its runtime length is a "
        "multiple of this number; context parallelism needs twice its size.",
    )

    @model_validator(mode="after")
    def _room_for_one_multiple(self) -> PackConfig:
        if self.pad_to_multiple > self.size - 1:
            raise ValueError(
                f"pad_to_multiple {self.pad_to_multiple} leaves no room in a bin of size {self.size}; "
                f"allowed: 1..{self.size - 1}"
            )
        return self


class StorageConfig(Config):
    """How packed shards are stored."""

    model_config = ConfigDict(json_schema_extra=GZIP_LEVELS)

    format: StorageFormat = Field(
        StorageFormat.PARQUET,
        title="Format",
        description="parquet; memmap: a folder of padded arrays for random access; npy: the legacy pickle format.",
    )
    row_group_size: int = Field(
        64,
        ge=1,
        le=100_000,
        title="Row group size",
        description="Bins per Parquet row group; fewer where that would be more than 2^20 tokens.",
    )
    compression: Compression = Field(
        Compression.ZSTD, title="Compression", description="Parquet compression codec."
    )
    compression_level: int = compression_level_field("Level for zstd (1-22) and gzip (1-9).")
    shard_tokens: int = Field(
        2**26,
        ge=1,
        le=LARGEST,
        title="Shard tokens",
        description="The shards of a split have about equally many tokens, and at most about this many.",
    )

    def bounded(self, size: int) -> StorageConfig:
        """Return the same with row groups of at most 2^20 tokens: one is held in memory, by writers and by readers.

        Args:
            size: tokens of a bin.

        >>> [StorageConfig().bounded(size).row_group_size for size in (4096, 16_384, 131_072, 1 << 24)]
        [64, 64, 8, 1]
        """
        rows = max(1, min(self.row_group_size, _GROUP_TOKENS // size))
        return self.model_copy(update={"row_group_size": rows})

    @model_validator(mode="after")
    def _level_fits_codec(self) -> StorageConfig:
        if self.compression is Compression.GZIP and self.compression_level > 9:
            raise ValueError(f"gzip levels range from 1 to 9, not {self.compression_level}")
        return self


class SplitsConfig(Config):
    """Shares of the conversations; they must add up to 1."""

    train: float = Field(0.98, gt=0, le=1, title="Train", description="Share of the training split.")
    valid: float = Field(0.01, ge=0, lt=1, title="Valid", description="Share of the validation split.")
    test: float = Field(0.01, ge=0, lt=1, title="Test", description="Share of the test split.")

    @model_validator(mode="after")
    def _add_up(self) -> SplitsConfig:
        total = self.train + self.valid + self.test
        if not math.isclose(total, 1.0, abs_tol=1e-9):
            raise ValueError(
                f"train + valid + test must be 1, but {self.train} + {self.valid} + {self.test} is {total:g}"
            )
        return self

    def intervals(self) -> dict[str, tuple[float, float]]:
        """Return the half-open interval of [0, 1) of each split with a share above 0.

        >>> SplitsConfig(train=0.75, valid=0.25, test=0).intervals()
        {'train': (0.0, 0.75), 'valid': (0.75, 1.0)}
        """
        last = next(name for name in reversed(SPLIT_NAMES) if getattr(self, name) > 0)
        intervals: dict[str, tuple[float, float]] = {}
        low = 0.0
        for name in SPLIT_NAMES:
            share = getattr(self, name)
            if share > 0:
                high = 1.0 if name == last else low + share
                intervals[name] = (low, high)
                low = high
        return intervals


class PackSftConfig(Config):
    """Pack chat data into shards with exact loss masks."""

    output_dir: str = output_dir_field()
    seed: int = seed_field("Decides the splits and the packing.")
    datasets: tuple[DatasetConfig, ...] = Field(
        min_length=1, title="Data sets", description="The sources to pack, in blend order."
    )
    tokenizer: TokenizerConfig = Field(title="Tokenizer", description="Tokenizer and chat template.")
    train_on: TrainOn = Field(
        TrainOn.ASSISTANT,
        title="Train on",
        description="assistant: every assistant turn; last_turn: the last assistant message; all: every token.",
    )
    drop_empty: bool = Field(
        False,
        title="Drop empty answers",
        description="Reject conversations in which an assistant turn has no text, tool calls or reasoning; by "
        "default they are kept and counted.",
    )
    pack: PackConfig = Field(default_factory=PackConfig, title="Packing", description="How bins are filled.")
    storage: StorageConfig = Field(
        default_factory=StorageConfig, title="Storage", description="How shards are stored."
    )
    splits: SplitsConfig = Field(
        default_factory=SplitsConfig, title="Splits", description="Shares of train, valid and test."
    )
    mix: Mix = Field(
        Mix.NATURAL,
        title="Mixture",
        description="natural: splits/train has all of every data set, and only blend.json follows the weights; "
        "downsample: it has the weights' shares of the tokens, with less of some data sets; upsample: with some data "
        "sets repeated.",
    )
    deduplicate: bool = Field(
        False,
        title="Deduplicate",
        description="Keep only the first of several identical conversations in a data set.",
    )
    max_row_bytes: int = Field(
        MAX_ROW_BYTES,
        ge=1024,
        le=2**26,
        title="Largest row",
        description="Reject conversations of more bytes, as JSON; tokenizing takes about 200 bytes of memory a byte.",
    )
    max_reject_fraction: float = max_reject_fraction_field()
    alarms: PackAlarms | None = alarms_field()
    workers: int = workers_field()

    @property
    def subject(self) -> str:
        return f"{few(self.tags)} {self.pack.size}"

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(dataset.name for dataset in self.datasets)

    @field_validator("datasets")
    @classmethod
    def _names_are_unique(cls, datasets: tuple[DatasetConfig, ...]) -> tuple[DatasetConfig, ...]:
        seen: dict[str, int] = {}
        for position, dataset in enumerate(datasets):
            # Names become folders, and some file systems ignore case.
            first = seen.setdefault(dataset.name.casefold(), position)
            if first != position:
                raise ValueError(
                    f"the data set name {dataset.name!r} is used by both datasets[{first}] and [{position}]"
                )
        return datasets
