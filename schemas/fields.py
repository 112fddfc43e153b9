"""What configurations share: fields of several flows, and rules between fields as JSON schema.

A server checks a form's values against the schema before it creates a run, and names the field. Rules that JSON
schema cannot express (shares that add up to 1, a bound that depends on a number) are checked when the run starts.
"""

from __future__ import annotations

import os
from typing import Any

from pydantic import Field
from pydantic.config import JsonDict

from schemas.config import by_content, execution_only

# One folder below another: no separator, and neither "." nor "..".
FOLDER_NAME: JsonDict = {"pattern": r"^(?!\.{1,2}$)[^/\\\x00]+$"}

GZIP_LEVELS: JsonDict = {
    "if": {"properties": {"compression": {"const": "gzip"}}, "required": ["compression"]},
    "then": {"properties": {"compression_level": {"maximum": 9}}},
}

# Snappy and no compression have no levels: only the default is allowed.
ZSTD_LEVELS: JsonDict = {
    "if": {"properties": {"compression": {"enum": ["snappy", "none"]}}, "required": ["compression"]},
    "then": {"properties": {"compression_level": {"const": 1}}},
}

# `buckets` must not be empty, unless its former name is used.
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
        description="Folder for runs, stages and the published links.",
    )


def max_reject_fraction_field() -> Any:
    """Declare `max_reject_fraction`, a share of 1."""
    return execution_only(
        0.05,
        ge=0,
        le=1,
        title="Reject limit",
        description="The run fails if a larger share of a source's rows is rejected.",
    )


def workers_field() -> Any:
    """Declare `workers`, the number of tasks that run at the same time."""
    return execution_only(
        min(32, os.cpu_count() or 1),
        ge=1,
        le=1024,
        title="Workers",
        description="Tasks that run at the same time.",
    )


def seed_field(description: str, least: int = 0) -> Any:
    """Declare a seed, from `least` to the largest signed 64-bit number."""
    return Field(42, ge=least, le=2**63 - 1, title="Seed", description=description)


def compression_level_field(description: str) -> Any:
    """Declare `compression_level` with the range of zstd; narrower codecs add a rule of their own."""
    return Field(1, ge=1, le=22, title="Compression level", description=description)


def text_field(default: str, title: str, description: str) -> Any:
    """Declare a text that must not be empty."""
    return Field(default, min_length=1, title=title, description=description)


def template_field(default: str | None, description: str) -> Any:
    """Declare `chat_template`, hashed by content."""
    return by_content(default, min_length=1, title="Chat template", description=description)
