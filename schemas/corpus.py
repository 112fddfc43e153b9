"""Corpus sampling: configuration, the rule of selection, and the schema of a sample.

A document is a row of a Parquet file in a bucket. Its id is `"{bucket}#{path}#{row}"`, with the path relative to
the bucket's folder; its hash is the first 8 bytes of the MD5 of `"{seed}_{id}"`, big-endian. A bucket keeps the
`count` documents with the smallest hashes (ties by file, then row), in file and row order. A larger
count keeps all earlier rows.
"""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from schemas.alarms import RejectAlarms, alarms_field
from schemas.config import LARGEST, Config, by_content, execution_only, few
from schemas.fields import (
    FOLDER_NAME,
    GZIP_LEVELS,
    SOME_BUCKETS,
    compression_level_field,
    max_reject_fraction_field,
    output_dir_field,
    seed_field,
    workers_field,
)

FLOW = "sample-corpus"
# Enters every hash; raised when the same configuration would give other bytes, defaults included.
FORMAT_VERSION = 2

SAMPLING_INFO = "sampling_info.json"
REPORT = "report.json"
# A sample publishes only `latest`.
PUBLISHED: dict[str, str] = {}

DEFAULT_GLOB = "**/*.parquet"
OWN_COLUMNS = ("text", "source_dataset", "source_bucket")


class OnError(StrEnum):
    """What an unreadable input file does to the run."""

    FAIL = "fail"
    SKIP = "skip"


class SampleCompression(StrEnum):
    """Parquet compression codecs of a sample."""

    ZSTD = "zstd"
    SNAPPY = "snappy"
    GZIP = "gzip"
    NONE = "none"


class BucketConfig(Config):
    """How many documents to take from one bucket."""

    count: int = Field(
        ge=0, le=LARGEST, title="Count", description="Documents to keep; all of them if the bucket has fewer."
    )


class CorpusDatasetConfig(Config):
    """One corpus: a folder with one subfolder of Parquet files for each bucket."""

    model_config = ConfigDict(json_schema_extra=SOME_BUCKETS)

    name: str = Field(min_length=1, title="Name", description="Value of the column source_dataset.")
    source: str = by_content(
        ..., min_length=1, title="Source", description="Folder with one subfolder for each bucket."
    )
    samples: int | None = execution_only(
        None,
        ge=0,
        le=LARGEST,
        title="Samples",
        description="Informational: the sum of the bucket counts.",
    )
    buckets: dict[str, BucketConfig] = Field(
        default_factory=dict,
        title="Buckets",
        description="The count of each bucket, by folder name.",
        json_schema_extra={"propertyNames": FOLDER_NAME},
    )
    stars_filter: dict[str, BucketConfig] = Field(
        default_factory=dict,
        title="Stars filter",
        description="Former name of buckets; used when buckets is empty.",
        json_schema_extra={"propertyNames": FOLDER_NAME},
    )
    text_column: str | None = Field(
        None,
        min_length=1,
        title="Text column",
        description="Column of the text; by default 'content' if the name contains 'github', otherwise 'text'.",
    )
    glob: str = Field(
        DEFAULT_GLOB,
        min_length=1,
        title="File glob",
        description="Pattern for the files of a bucket, relative to its folder.",
    )
    keep_columns: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (),
        title="Keep columns",
        description="Additional columns of the source to copy into the sample.",
        json_schema_extra={"uniqueItems": True},
    )
    where: dict[str, str | int | bool] = Field(
        default_factory=dict,
        title="Row filter",
        description="Keep only rows in which the column equals the value or is a list that contains it. Others are "
        "filtered out before selection.",
    )

    @field_validator("buckets", "stars_filter", mode="before")
    @classmethod
    def _names_as_text(cls, buckets: Any) -> Any:
        # YAML reads 4.0 as a float and 3 as an int; folders are named by their text.
        return {str(key): value for key, value in buckets.items()} if isinstance(buckets, dict) else buckets

    @field_validator("buckets", "stars_filter")
    @classmethod
    def _names_stay_in_the_source(cls, buckets: dict[str, BucketConfig]) -> dict[str, BucketConfig]:
        for name in buckets:
            if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
                raise ValueError(f"a bucket must be the name of one folder below the source, not {name!r}")
        return buckets

    @field_validator("keep_columns")
    @classmethod
    def _columns_are_free(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        taken = [name for name in columns if name in OWN_COLUMNS]
        if taken or len(set(columns)) != len(columns):
            raise ValueError(
                f"columns must be distinct, and {', '.join(OWN_COLUMNS)} are reserved; got {list(columns)}"
            )
        return columns

    @model_validator(mode="after")
    def _has_buckets(self) -> CorpusDatasetConfig:
        if not self.counts:
            raise ValueError("no buckets are given; write buckets: {folder name: {count: n}}")
        return self

    @property
    def counts(self) -> dict[str, int]:
        """Documents to take from each bucket, in configuration order."""
        return {name: bucket.count for name, bucket in (self.buckets or self.stars_filter).items()}

    @property
    def text(self) -> str:
        """The column the text is read from."""
        if self.text_column is not None:
            return self.text_column
        return "content" if "github" in self.name.lower() else "text"


class SampleCorpusConfig(Config):
    """Draw a deterministic, exact sample from bucketed Parquet corpora."""

    model_config = ConfigDict(json_schema_extra=GZIP_LEVELS)

    output_dir: str = output_dir_field()
    datasets: dict[str, CorpusDatasetConfig] = Field(
        min_length=1, title="Data sets", description="The corpora, each under a key of your choice."
    )
    random_seed: int = seed_field("Part of every document's hash.", least=-(2**63))
    output_format: Literal["parquet"] = Field(
        "parquet", title="Output format", description="Only parquet is supported."
    )
    id_column: bool | Annotated[str, Field(min_length=1)] = Field(
        False,
        title="Id column",
        description="Add a column with the document id that was hashed, bucket#path#row: true to call it id, or a "
        "name.",
    )
    max_rows: int = Field(
        500_000,
        ge=1,
        le=LARGEST,
        title="Rows per file",
        description="Largest number of rows in one output file.",
    )
    compression: SampleCompression = Field(
        SampleCompression.ZSTD, title="Compression", description="Parquet compression codec."
    )
    compression_level: int = compression_level_field("Level for zstd (1-22) and gzip (1-9).")
    min_characters: int = Field(
        0,
        ge=0,
        le=LARGEST,
        title="Shortest text",
        description="Documents with fewer characters are filtered out before selection.",
    )
    max_characters: int | None = Field(
        None,
        ge=1,
        le=LARGEST,
        title="Longest text",
        description="Documents with more characters are filtered out before selection.",
    )
    on_error: OnError = Field(
        OnError.FAIL,
        title="On error",
        description="What to do with an unreadable file. fail: stop the run before anything is written; skip: leave "
        "the file out, count it and list it.",
    )
    max_reject_fraction: float = max_reject_fraction_field()
    alarms: RejectAlarms | None = alarms_field()
    workers: int = workers_field()
    io_workers: int = execution_only(
        2 * min(32, os.cpu_count() or 1),
        ge=1,
        le=1024,
        title="I/O workers",
        description="Files inspected at the same time.",
    )
    batch_rows: int = execution_only(
        50_000,
        ge=1,
        le=LARGEST,
        title="Batch rows",
        description="Most rows read at once; about 1 MiB is read at once if that is less.",
    )

    @field_validator("id_column", mode="before")
    @classmethod
    def _id_column_is_named(cls, value: Any) -> Any:
        if not isinstance(value, bool | str) or value == "":
            raise ValueError("expected true, false or the name of the column")
        return value

    @model_validator(mode="after")
    def _id_column_is_free(self) -> SampleCorpusConfig:
        name = self.id_name
        if name in OWN_COLUMNS:
            raise ValueError(f"id_column must not be one of {', '.join(OWN_COLUMNS)}; got {name!r}")
        for key, dataset in self.datasets.items():
            if name in dataset.keep_columns:
                raise ValueError(
                    f"id_column {name!r} is also one of datasets.{key}.keep_columns; choose another name"
                )
        return self

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> SampleCorpusConfig:
        if self.max_characters is not None and self.max_characters < self.min_characters:
            raise ValueError(
                f"max_characters {self.max_characters} is less than min_characters {self.min_characters}"
            )
        if self.compression is SampleCompression.GZIP and self.compression_level > 9:
            raise ValueError(f"gzip levels range from 1 to 9, not {self.compression_level}")
        return self

    @property
    def subject(self) -> str:
        count = sum(sum(dataset.counts.values()) for dataset in self.datasets.values())
        return f"{few(self.tags)} {count}"

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(self.datasets)

    @property
    def id_name(self) -> str | None:
        """The name of the id column, if there is one."""
        if isinstance(self.id_column, str):
            return self.id_column
        return "id" if self.id_column else None

    @property
    def filters_length(self) -> bool:
        return self.min_characters > 0 or self.max_characters is not None
