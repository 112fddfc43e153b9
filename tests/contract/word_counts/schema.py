"""Word counts: configuration, and the names of what is published."""

from __future__ import annotations

from pydantic import Field

from schemas.alarms import RejectAlarms, alarms_field
from schemas.config import Config, by_content
from schemas.fields import max_reject_fraction_field, output_dir_field, workers_field

FLOW = "count-words"
# Enters every hash; raised when the same configuration would give other bytes, defaults included.
FORMAT_VERSION = 1
PUBLISHED: dict[str, str] = {}
COUNTS = "counts.json"


class CountWordsConfig(Config):
    """How often each word occurs in the field `text` of JSON lines."""

    output_dir: str = output_dir_field()
    input: str = by_content(..., min_length=1, title="Input", description="A file, a folder or a glob.")
    min_count: int = Field(1, ge=1, title="Least count", description="Rarer words are left out.")
    max_reject_fraction: float = max_reject_fraction_field()
    alarms: RejectAlarms | None = alarms_field()
    workers: int = workers_field()
