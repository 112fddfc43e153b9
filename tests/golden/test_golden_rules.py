"""What may be recorded anew: nothing that changed under an unchanged format version."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from golden.configs import changed_defaults, record_defaults
from golden.digests import byte_digest, logical_digest
from golden.record import Kind, Values, change, locked, unlocked

RECORDED: Values = {
    "given": "0",
    "formats": {"pack-sft": 1, "receipt": 1, "manifest": 1},
    "packages": {"pyarrow": "26"},
    "run_hash": "aa",
    "receipts": {
        "stages/b/receipts/plan-000000.json": {"files": {"x.npy": {"sha256": "1"}}, "statistics": ["bins"]}
    },
    "files": {"a.parquet": {"sha256": "1", "logical": "2"}},
}


def edited(edit: Callable[[Values], object]) -> Values:
    values = copy.deepcopy(RECORDED)
    edit(values)
    return values


@pytest.mark.parametrize(
    ("edit", "what", "allowed"),
    [
        (lambda v: v.update(run_hash="bb"), "run_hash", False),
        (lambda v: v["files"]["a.parquet"].update(logical="3"), "files.a.parquet.logical", False),
        (lambda v: v["files"]["a.parquet"].update(sha256="3"), "files.a.parquet.sha256", False),
        (lambda v: v["files"].update({"b": {"sha256": "1", "logical": "2"}}), "files.b.logical", False),
        (lambda v: v["files"].clear(), "files", False),
        (
            lambda v: v["receipts"].clear(),
            "receipts.stages/b/receipts/plan-000000.json.statistics.bins",
            False,
        ),
        (
            lambda v: v["receipts"]["stages/b/receipts/plan-000000.json"]["statistics"].append("shards"),
            "receipts.stages/b/receipts/plan-000000.json.statistics.shards",
            True,
        ),
        (lambda v: v.update(given="1", run_hash="bb"), "given: 0 -> 1", True),
        (lambda v: v["formats"].update({"pack-sft": 2}), "formats.pack-sft: 1 -> 2", True),
        (
            lambda v: (v["packages"].update(pyarrow="27"), v["files"]["a.parquet"].update(sha256="3")),
            "files.a.parquet.sha256",
            True,
        ),
        (
            lambda v: (v["packages"].update(pyarrow="27"), v["files"]["a.parquet"].update(logical="3")),
            "files.a.parquet.logical",
            False,
        ),
    ],
)  # fmt: skip
def test_a_change_needs_a_reason(edit: Callable[[Values], object], what: str, allowed: bool) -> None:
    found = change(RECORDED, edited(edit))
    assert found is not None and what in found.what and found.allowed is allowed
    assert ("raise the format version of pack-sft" in str(found)) is not allowed
    assert "make golden" in str(found)


def test_what_is_equal_or_new_is_no_fault() -> None:
    assert change(RECORDED, copy.deepcopy(RECORDED)) is None
    assert change(RECORDED, edited(lambda v: v["packages"].update(pyarrow="27"))) is None
    first = change(None, RECORDED)
    assert first is not None and first.allowed


def test_values_and_bytes_are_looked_at_apart() -> None:
    found = edited(lambda v: v["files"]["a.parquet"].update(sha256="3"))
    assert change(RECORDED, found, Kind.LOGICAL) is None
    assert change(RECORDED, found, Kind.BYTES) is not None
    found = edited(lambda v: v["files"]["a.parquet"].update(logical="3"))
    assert change(RECORDED, found, Kind.BYTES) is None


@pytest.mark.parametrize(
    ("group", "edit", "allowed"),
    [
        ("hashed", {"storage.row_group_size": 32}, False),
        ("hashed", {"storage.row_group_size": "gone"}, False),
        ("hashed", {"pack.new_option": False}, True),
        ("not_hashed", {"max_reject_fraction": 0.5}, True),
    ],
)
def test_a_default_of_a_hashed_option_stays(group: str, edit: dict[str, Any], allowed: bool) -> None:
    recorded = record_defaults()["pack-sft.defaults"]
    found = copy.deepcopy(recorded)
    found[group] = {key: value for key, value in {**found[group], **edit}.items() if value != "gone"}
    [path] = edit
    difference = changed_defaults(recorded, found)
    assert difference is not None and difference.allowed is allowed
    assert any(path in what for what in difference.what)
    found["formats"]["pack-sft"] += 1
    assert (raised := changed_defaults(recorded, found)) is not None and raised.allowed
    assert changed_defaults(recorded, recorded) is None


def test_a_logical_digest_follows_values_alone(tmp_path: Path) -> None:
    table = pa.table({"a": [1, 2], "b": [["x"], []]})
    for name, options in (("one", {}), ("two", {"compression": "gzip", "use_dictionary": False})):
        pq.write_table(table, tmp_path / f"{name}.parquet", **options)
    one, two = tmp_path / "one.parquet", tmp_path / "two.parquet"
    assert logical_digest(one) == logical_digest(two) and byte_digest(one) != byte_digest(two)
    pq.write_table(table.cast(pa.schema([("a", pa.int32()), ("b", pa.list_(pa.string()))])), two)
    assert logical_digest(one) != logical_digest(two)
    for stored, value in ((1, 1), (2, 1), (1, 2)):
        (tmp_path / f"{stored}{value}.json").write_text(json.dumps({"stored_bytes": stored, "rows": value}))
    digests = [logical_digest(tmp_path / f"{name}.json") for name in ("11", "21", "12")]
    assert digests[0] == digests[1] != digests[2]


def test_the_lock_names_what_is_compared() -> None:
    assert {"pyarrow", "numpy", "tokenizers", "array-record", "orjson"} <= locked().keys()
    assert unlocked([]) == []
