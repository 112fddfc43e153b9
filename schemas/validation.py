"""Configuration of validation."""

from __future__ import annotations

from pathlib import PurePath
from typing import Literal

from pydantic import Field

from schemas.config import Config

FLOW = "validate"


# A literal rather than an enum: the schema of a field that refers to an enum loses the field's title.
Level = Literal["quick", "full"]


class ValidateConfig(Config):
    """Check any output: a run, an output folder, a folder of files of one kind, or one file."""

    path: str = Field(
        min_length=1,
        title="Path",
        description="A run, an output folder (its latest run), a tokenizer, reject files, a folder of shards, or a "
        "single shard, from Gristmill or another tool; or the URI of a run or of shards of packed Parquet.",
    )
    level: Level = Field(
        "full",
        title="Level",
        description="quick: check the sizes, links and ledger of a run; full: also read every row and "
        "recompute checksums. Loose files are always read.",
    )

    @property
    def subject(self) -> str:
        return f"{PurePath(self.path).name or self.path} {self.level}"
