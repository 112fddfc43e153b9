"""Rules between fields as JSON schema, so that Prefect's form refuses what our models would.

A server checks a form's values against the schema before it creates a run, and names the field. Rules that JSON
schema cannot say (shares that add up to 1, a bound that depends on a number) are checked when the run starts.
"""

from __future__ import annotations

from pydantic.config import JsonDict

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
