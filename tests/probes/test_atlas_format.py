"""RIPE Atlas results to records and back: equal to what plain Python reads from the same JSON."""

from __future__ import annotations

import bz2
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from atlas_results import REJECTED, Measurement, fifty, read_plainly, rejected_counts
from measurements import build_serially, config_of, raw_records, records

from schemas.errors import ConfigError, InputError
from tasks.probes.validate import validate_probes

ATLAS = {"format": "atlas", "train_ratio": 1.0, "max_reject_fraction": 0.2}


def lines(results: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(result).encode() + b"\n" for result in results)


FILES: dict[str, Callable[[list[dict[str, Any]]], bytes]] = {
    "results.ndjson": lines,
    "results.jsonl": lambda results: lines(results).rstrip(b"\n"),
    "results.json": lambda results: json.dumps(results).encode(),
    "pretty.json": lambda results: b"\xef\xbb\xbf \n" + json.dumps(results, indent=1).encode() + b"\n",
    "results.json.gz": lambda results: gzip.compress(json.dumps(results).encode()),
    "results.ndjson.zst": lambda results: pa.compress(lines(results), "zstd", asbytes=True),
    "ping-2020-09-08T0000.bz2": lambda results: bz2.compress(lines(results)),
}


def read_back(folder: Path) -> dict[str, list[Measurement]]:
    return {
        record["src_addr"]: [
            (m["event_time"], m["dst_addr"], m["ip_version"], m["rtt"]) for m in record["measurements"]
        ]
        for record in records(folder)
    }


@pytest.mark.parametrize("name", FILES)
def test_fifty_results_come_back_equal(tmp_path: Path, name: str) -> None:
    results = fifty()
    assert len(results) == 50
    (tmp_path / name).write_bytes(FILES[name](results))
    manifest, _ = build_serially(config_of(tmp_path / name, tmp_path / "out", **ATLAS))
    folder = tmp_path / "out" / "latest"
    wanted = read_plainly(results)
    assert read_back(folder) == wanted
    used = sum(map(len, wanted.values()))
    assert manifest.ledger.rows_used == used > 130
    assert manifest.ledger.rejected == rejected_counts()
    assert manifest.ledger.rows_in == used + len(REJECTED)
    assert sum(rtt < 0 for rows in wanted.values() for *_, rtt in rows) == manifest.statistics["failed"] > 15
    listed = pq.read_table(folder / "rejects").to_pylist()
    assert [(entry["source_file"], entry["row"], entry["reason"]) for entry in listed] == [
        (name, row, reason) for row, _, reason in REJECTED
    ]
    for entry, (_, reply, _) in zip(listed, REJECTED, strict=True):
        assert entry["detail"].startswith(f"reply {reply}: ") == (reply > 0), entry
    assert validate_probes(folder, manifest, full=True).faults == ()


def test_the_address_that_ripe_sees_can_be_the_source(tmp_path: Path) -> None:
    results = fifty()
    (tmp_path / "results.ndjson").write_bytes(lines(results))
    config = config_of(tmp_path / "results.ndjson", tmp_path / "out", columns={"src_addr": "from"}, **ATLAS)
    manifest, _ = build_serially(config)
    found = read_back(tmp_path / "out" / "latest")
    assert found == read_plainly(results, "from")
    assert "198.51.100.0" in found and not any(address.startswith("192.168.") for address in found)
    assert validate_probes(tmp_path / "out" / "latest", manifest, full=True).faults == ()


def test_lines_that_are_not_results_are_rejected_by_their_number(tmp_path: Path) -> None:
    good = lines(fifty()[:20]).splitlines()
    broken = [b'{"type": "ping", ', b"", b"[]", b"7", *good[:10], b'{"fw": "\xff"}', *good[10:]]
    (tmp_path / "a.ndjson").write_bytes(b"\n".join(broken))
    manifest, _ = build_serially(config_of(tmp_path / "a.ndjson", tmp_path / "out", **ATLAS))
    folder = tmp_path / "out" / "latest"
    listed = pq.read_table(folder / "rejects").to_pylist()
    assert [(entry["row"], entry["reason"]) for entry in listed] == [
        (0, "invalid_json"), (2, "not_an_object"), (3, "not_an_object"), (14, "invalid_utf8"),
    ]  # fmt: skip
    assert read_back(folder) == read_plainly(fifty()[:20])
    assert validate_probes(folder, manifest, full=True).faults == ()


@pytest.mark.parametrize(("name", "error"), [("a.ndjson", InputError), ("a.json", ConfigError)])
def test_results_without_their_format_are_told(tmp_path: Path, name: str, error: type[Exception]) -> None:
    (tmp_path / name).write_bytes(lines(fifty()))
    for path in (tmp_path / name, tmp_path):
        with pytest.raises(error, match=r"set format to .*atlas"):
            build_serially(config_of(path, tmp_path / "out"))


def test_a_plain_file_is_cut_at_line_ends_and_gives_the_same_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.ndjson").write_bytes(lines(fifty()))
    whole, _ = build_serially(config_of(tmp_path / "a.ndjson", tmp_path / "whole", **ATLAS))
    monkeypatch.setattr("tasks.inputs.parts.SMALLEST_PIECE", 3000)
    parts, _ = build_serially(config_of(tmp_path / "a.ndjson", tmp_path / "parts", **ATLAS))
    assert raw_records(tmp_path / "parts" / "latest") == raw_records(tmp_path / "whole" / "latest")
    assert parts.ledger == whole.ledger
    assert len([name for name in parts.stages if name.startswith("scatter")]) > 3
    listed = pq.read_table(tmp_path / "parts" / "latest" / "rejects").to_pylist()
    assert [entry["row"] for entry in listed] == [row for row, _, _ in REJECTED]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'[{"prb_id": 1}, {"prb_id": 2]', "element 1"),
        (b'[{"prb_id": 1} {"prb_id": 2}]', "neither a comma nor ] after 1 elements"),
        (b'[{"prb_id": 1}, NaN]', "NaN is not JSON"),
        (b'[{"prb_id": 1}] more', "text after its end"),
        (b'[{"prb_id": "\xff"}]', "invalid start byte"),
        (b'[{"prb_id": 1},', "element 1"),
        (b'{"event_time": 1}\n', "no RIPE Atlas results"),
    ],
)
def test_files_that_are_not_results(tmp_path: Path, text: bytes, said: str) -> None:
    (tmp_path / "a.json").write_bytes(text)
    with pytest.raises(InputError) as caught:
        build_serially(config_of(tmp_path / "a.json", tmp_path / "out", **ATLAS))
    assert said in caught.value.message
    assert not (tmp_path / "out" / "latest").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"event_time_unit": "s"}, "omit event_time_unit"),
        ({"columns": {"rtt": "avg"}}, "omit columns.rtt"),
        ({"columns": {"ip_version": None}}, "omit columns.ip_version"),
    ],
)
def test_settings_that_results_have_no_use_for(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config_of(tmp_path, tmp_path / "out", **ATLAS, **change)
