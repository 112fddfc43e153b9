"""What configurations share: fields that every flow has, and rules between fields as JSON schema.

A server checks a form's values against the schema before it creates a run, and names the field. Rules that JSON
schema cannot say (shares that add up to 1, a bound that depends on a number) are checked when the run starts.
"""

from __future__ import annotations

import os
from typing import Any

from pydantic.config import JsonDict

from schemas.config import execution_only

# One folder below another: no separator, neither "." nor "..".
FOLDER_NAME: JsonDict = {"pattern": r"^(?!\.{1,2}$)[^/\\\x00]+$"}

GZIP_LEVELS: JsonDict = {
    "if": {"properties": {"compression": {"const": "gzip"}}, "required": ["compression"]},
    "then": {"properties": {"compression_level": {"maximum": 9}}},
}

# Snappy, and no compression, have no levels: nothing but the default.
ZSTD_LEVELS: JsonDict = {
    "if": {"properties": {"compression": {"enum": ["snappy", "none"]}}, "required": ["compression"]},
    "then": {"properties": {"compression_level": {"const": 1}}},
}

# `buckets` must name some, unless its older name does.
SOME_BUCKETS: JsonDict = {
    "if": {"not": {"properties": {"stars_filter": {"minProperties": 1}}, "required": ["stars_filter"]}},
    "then": {"properties": {"buckets": {"minProperties": 1}}, "required": ["buckets"]},
}


def output_dir_field() -> Any:
    """Declare `output_dir`, the root of the run layout."""
    return execution_only(
        ...,
        min_length=1,
        title="Output folder",
        description="Folder for runs, stages and the published view.",
    )


def max_reject_fraction_field() -> Any:
    """Declare `max_reject_fraction`, a share of 1."""
    return execution_only(
        0.05,
        ge=0,
        le=1,
        title="Reject limit",
        description="A source that rejects a larger share of its rows fails the run.",
    )


def workers_field() -> Any:
    """Declare `workers`, how many tasks run at once."""
    return execution_only(
        min(32, os.cpu_count() or 1), ge=1, le=1024, title="Workers", description="Tasks run at once."
    )
