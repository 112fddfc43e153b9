"""Describe an output to the domains: its files, and the tables for queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from tasks.run.find import Found


@dataclass(frozen=True)
class Outputs:
    """The files of one kind.

    Attributes:
        path: the path that the user gave.
        kind: what they are, in a few words.
        files: shards in order; for a tokenizer its `tokenizer.json`.
        rejects: the files of rejected rows beside them.
        run: the run they belong to, if any.
    """

    path: str
    kind: str
    files: tuple[Path, ...]
    rejects: tuple[Path, ...] = ()
    run: Found[Path] | None = None

    @property
    def root(self) -> Path:
        """The folder that shard names are relative to."""
        return self.run.folder if self.run is not None else Path(self.path)

    def name(self, file: Path) -> str:
        """Return the name of a shard in its run or folder."""
        is_below = file != self.root and file.is_relative_to(self.root)
        return file.relative_to(self.root).as_posix() if is_below else file.name


@dataclass(frozen=True)
class Tables:
    """The tables that a query can read.

    Attributes:
        files: table name to Parquet files.
        streams: table name to batches.
    """

    files: dict[str, Sequence[Path]] = field(default_factory=dict)
    streams: dict[str, pa.RecordBatchReader] = field(default_factory=dict)
