"""Say what to read: consecutive row groups of a Parquet file, or a segment of a text file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from schemas.probes import INPUT_COLUMNS, BuildProbeRowsConfig, MeasurementFormat, TimeUnit
from tasks.inputs.segments import Segment


@dataclass(frozen=True)
class RowGroups:
    """Locate consecutive row groups of one file.

    Attributes:
        path: the file; `name`: its name in rejects and hashes.
        digest: SHA-256 of the whole file.
        first_group, end_group: row groups to read.
        first_row: the row of the file at which they start; `rows`: how many rows they contain.
        seen: what the file looked like when it was hashed.
    """

    path: str
    name: str
    digest: str
    first_group: int
    end_group: int
    first_row: int
    rows: int
    seen: tuple[int, ...] = ()

    def key(self) -> list[Any]:
        """Return what the rows depend on, for a stage key."""
        return [self.name, self.digest, self.first_group, self.end_group]


@dataclass(frozen=True)
class TextSegment:
    """Locate a segment of a text file.

    Attributes:
        segment: where it is.
        digest: SHA-256 of the whole file.
        format: csv, ndjson or atlas.
        rows: an estimate of how many rows it contains.
        seen: what the file looked like when it was hashed.
    """

    segment: Segment
    digest: str
    format: MeasurementFormat
    rows: int
    seen: tuple[int, ...] = ()

    @property
    def path(self) -> str:
        """The file."""
        return self.segment.path

    @property
    def name(self) -> str:
        """The file's name in rejects and hashes."""
        return self.segment.name

    def key(self) -> list[Any]:
        """Return what the rows depend on, for a stage key."""
        return [self.name, self.digest, self.format.value, self.segment.start, self.segment.stop]


Piece = RowGroups | TextSegment


@dataclass(frozen=True)
class Reading:
    """Say which columns of the input are which of ours, and how its times are written.

    Attributes:
        columns: their name of each of `INPUT_COLUMNS`; `None` for a version that is derived from the addresses.
        time_unit: of times that are numbers.
    """

    columns: tuple[str | None, ...] = INPUT_COLUMNS
    time_unit: TimeUnit | None = None

    @classmethod
    def of(cls, config: BuildProbeRowsConfig) -> Reading:
        """Return how the inputs of a configuration are read."""
        return cls(tuple(getattr(config.columns, name) for name in INPUT_COLUMNS), config.event_time_unit)

    def may_lack(self, theirs: str) -> bool:
        """Return whether an input need not have this column: that of the version, unless it was named."""
        return theirs == "ip_version" == self.columns[INPUT_COLUMNS.index("ip_version")]
