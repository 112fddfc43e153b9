"""Probe rows: configuration, the record, and its invariants.

A probe is a source address. A record is everything one probe measured, or one of several equal parts of it if it
would be larger than `max_record_bytes`. It is an Arrow IPC stream of exactly one row (`record_schema`) whose
`measurements` is itself an IPC stream of one batch (`measurements_schema`).

Invariants: measurements are in time order, ties in input order (files by name, then row); the parts of a probe follow
each other in one shard; all records of a probe are in one split; `src_id` is the first 15 hex digits of the MD5 of
the address; bytes that Arrow pads buffers with are zero.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_validator

from schemas.alarms import RejectAlarms, alarms_field
from schemas.config import Config, by_content, execution_only, few
from schemas.fields import (
    ZSTD_LEVELS,
    compression_level_field,
    max_reject_fraction_field,
    output_dir_field,
    seed_field,
    text_field,
    workers_field,
)

FLOW = "build-probe-rows"
# Enters every hash; raised when the same configuration would give other bytes, defaults included.
FORMAT_VERSION = 2

REPORT = "report.json"
# Probe rows publish nothing besides `latest`.
PUBLISHED: dict[str, str] = {}

TRAIN, TEST = "train", "test"
SPLITS = (TRAIN, TEST)
SHARD_SUFFIX = ".arrayrecord"

INPUT_COLUMNS = ("event_time", "src_addr", "dst_addr", "ip_version", "rtt")

# Times start in 1970 and end on 2106-02-07, so that the seconds between any two of them fit into 4 bytes.
END_TIME_S = 2**32
# A round trip is tokenized as at most 32 bits of microseconds: about 71 minutes.
END_RTT_MS = 2**32 / 1000


class ProbeSplit(StrEnum):
    """How probes are divided into train and test."""

    HASH = "hash"
    SORTED = "sorted"


class RecordCompression(StrEnum):
    """ArrayRecord codecs."""

    ZSTD = "zstd"
    SNAPPY = "snappy"
    NONE = "none"


class MeasurementFormat(StrEnum):
    """How measurements are stored."""

    AUTO = "auto"
    PARQUET = "parquet"
    CSV = "csv"
    NDJSON = "ndjson"
    ATLAS = "atlas"


class TimeUnit(StrEnum):
    """The unit of times that are numbers."""

    S = "s"
    MS = "ms"
    US = "us"
    NS = "ns"


Text = Annotated[str, Field(min_length=1)]


class MeasurementColumns(Config):
    """Name the input's columns: our name to theirs."""

    event_time: str = text_field(
        "event_time", "event_time", "Column of the time: a timestamp, ISO 8601 text or a number."
    )
    src_addr: str = text_field("src_addr", "src_addr", "Column of the probe's address.")
    dst_addr: str = text_field("dst_addr", "dst_addr", "Column of the target's address.")
    ip_version: Text | None = Field(
        "ip_version",
        title="ip_version",
        description="Column of the IP version, 4 or 6; it may be missing. null: do not read it.",
    )
    rtt: str = text_field(
        "rtt", "rtt", "Column of the round trip time in ms; negative for a failed measurement."
    )

    @model_validator(mode="after")
    def _each_column_once(self) -> MeasurementColumns:
        named = [name for name in self.model_dump().values() if name is not None]
        twice = sorted({name for name in named if named.count(name) > 1})
        if twice:
            raise ValueError(f"the column {twice[0]!r} is named twice; each of ours is a column of its own")
        return self


class BuildProbeRowsConfig(Config):
    """Turn network measurements into one record per source probe, split into train and test by probe."""

    model_config = ConfigDict(json_schema_extra=ZSTD_LEVELS)

    input: Text | tuple[Text, ...] = by_content(
        ...,
        min_length=1,
        title="Input",
        description="A file of measurements (Parquet, CSV, NDJSON, RIPE Atlas results), a folder of them, a glob, or "
        "a list of these. Their order does not matter.",
    )
    output_dir: str = output_dir_field()
    format: MeasurementFormat = Field(
        MeasurementFormat.AUTO,
        title="Format",
        description="Format of the input. auto: by the file's ending (.parquet, .csv, .ndjson, .jsonl; text also "
        "compressed); atlas, RIPE Atlas ping results, must be set.",
    )
    columns: MeasurementColumns = Field(
        default_factory=MeasurementColumns,
        title="Columns",
        description="Names of the input's columns where they differ from ours. For the format atlas only src_addr "
        "can be given; `from` is the address that RIPE sees.",
    )
    event_time_unit: TimeUnit | None = Field(
        None,
        title="Time unit",
        description="Unit of times that are numbers since 1970: s, ms, us or ns; other times need none.",
    )
    seed: int = seed_field(
        "Part of every probe's hash, which decides its split and its place.", least=-(2**63)
    )
    train_ratio: float = Field(
        0.9,
        gt=0,
        le=1,
        title="Train ratio",
        description="Share of the probes in train; greater than 0, at most 1.",
    )
    split: ProbeSplit = Field(
        ProbeSplit.HASH,
        title="Split",
        description="hash: by a hash of the probe, so that both splits are alike; sorted: train gets the first "
        "addresses in text order, which can leave test without IPv6.",
    )
    max_record_bytes: int = Field(
        8 * 1024 * 1024,
        ge=4096,
        le=1 << 30,
        title="Largest record",
        description="Largest size of one record's measurements in bytes; a larger probe is split evenly into parts.",
    )
    compression: RecordCompression = Field(
        RecordCompression.ZSTD, title="Compression", description="Compression codec of the published files."
    )
    compression_level: int = compression_level_field("Level for zstd (1-22).")
    deduplicate: bool = Field(
        False,
        title="Deduplicate",
        description="Keep only one of several measurements that are equal in all columns.",
    )
    max_reject_fraction: float = max_reject_fraction_field()
    partitions: int | None = execution_only(
        None,
        ge=1,
        le=1_000_000,
        title="Partitions",
        description="Number of portions in which measurements are gathered, one after another; more portions need "
        "less memory. By default each has about 250,000 measurements. Never changes a record.",
    )
    spill_dir: str | None = execution_only(
        None,
        min_length=1,
        title="Spill folder",
        description="Folder for the sorted runs between the two passes, about 16 bytes per measurement, or "
        "twice as much where small runs are merged; by default inside the output folder.",
    )
    alarms: RejectAlarms | None = alarms_field()
    workers: int = workers_field()

    @model_validator(mode="after")
    def _level_belongs_to_zstd(self) -> BuildProbeRowsConfig:
        if self.compression is not RecordCompression.ZSTD and self.compression_level != 1:
            raise ValueError(f"{self.compression.value} has no compression levels; omit compression_level")
        return self

    @model_validator(mode="after")
    def _atlas_names_its_own(self) -> BuildProbeRowsConfig:
        if self.format is not MeasurementFormat.ATLAS:
            return self
        if self.event_time_unit is not None:
            raise ValueError("times of RIPE Atlas results are in seconds; omit event_time_unit")
        given = sorted(self.columns.hash_fields().keys() - {"src_addr"})
        if given:
            raise ValueError(f"RIPE Atlas results have their own field names; omit columns.{given[0]}")
        return self

    @property
    def subject(self) -> str:
        return few(PurePath(path).name or path for path in self.inputs)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The input paths as a list."""
        return (self.input,) if isinstance(self.input, str) else self.input


@cache
def measurements_schema() -> Any:
    """Return the Arrow schema of `measurements`: one row per measurement; a negative `rtt` (ms) is a failed one."""
    import pyarrow as pa

    return pa.schema(
        [
            ("event_time", pa.timestamp("us")),
            ("dst_addr", pa.string()),
            ("ip_version", pa.int8()),
            ("rtt", pa.float32()),
        ]
    )


@cache
def record_schema() -> Any:
    """Return the Arrow schema of a record.

    Times, span and count are the record's own; `part` counts from 0 to `n_parts - 1` over the records of a probe.
    """
    import pyarrow as pa

    return pa.schema(
        [
            ("src_id", pa.int64()),
            ("measurements", pa.binary()),
            ("n_measurements", pa.int32()),
            ("time_span_seconds", pa.float64()),
            ("first_timestamp", pa.timestamp("us")),
            ("last_timestamp", pa.timestamp("us")),
            ("src_addr", pa.string()),
            ("part", pa.int32()),
            ("n_parts", pa.int32()),
        ]
    )
