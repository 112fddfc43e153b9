"""Rows and files that cannot be used: a counted reject or one clear error, and nothing that looks finished."""

from __future__ import annotations

import datetime
import json
import os
import signal
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from array_record.python.array_record_module import ArrayRecordReader
from measurements import SCHEMA, START, build_serially, config_of, random_table, records, row, write_rows
from support import published_digests

from schemas.errors import ConfigError, InputError, IntegrityError
from schemas.probes import BuildProbeRowsConfig
from tasks.probes.validate import validate_probes

ROOT = Path(__file__).resolve().parents[2]
ANY = {"max_reject_fraction": 1.0, "train_ratio": 1.0}

BAD = {
    "null_time": {"event_time": None},
    "time_before_1970": {"event_time": datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999)},
    "time_after_2106": {"event_time": datetime.datetime(2106, 2, 7, 6, 28, 16)},
    "null_src_addr": {"src_addr": None},
    "bad_src_addr": {"src_addr": "192.0.2.256"},
    "null_dst_addr": {"dst_addr": None},
    "bad_dst_addr": {"dst_addr": "probe.example"},
    "null_rtt": {"rtt": None},
    "nan_rtt": {"rtt": float("nan")},
    "huge_rtt": {"rtt": 2**32 / 1000},
    "ip_version": {"ip_version": 6},
}
ALSO_BAD = [
    ("bad_src_addr", {"src_addr": ""}),
    ("bad_src_addr", {"src_addr": " 192.0.2.1"}),
    ("bad_src_addr", {"src_addr": "192.0.2.01"}),
    ("bad_src_addr", {"src_addr": "fe80::1%eth0"}),
    ("bad_dst_addr", {"dst_addr": "::ffff:1.2.3"}),
    ("bad_dst_addr", {"dst_addr": "1.2.3.4\0"}),
    ("bad_dst_addr", {"dst_addr": "１.2.3.4"}),
    ("huge_rtt", {"rtt": float("inf")}),
    ("huge_rtt", {"rtt": float("-inf")}),
    ("time_after_2106", {"event_time": datetime.datetime(9999, 1, 1)}),
    ("ip_version", {"ip_version": 5}),
    ("ip_version", {"ip_version": 0}),
    ("ip_version", {"ip_version": None, "dst_addr": "2001:db8::1"}),
    ("ip_version", {"src_addr": "2001:db8::1"}),
    ("ip_version", {"src_addr": "2001:db8::1", "dst_addr": "2001:db8::2"}),
]


def test_every_bad_row_is_counted_and_listed_under_its_reason(tmp_path: Path) -> None:
    faults = [*BAD.items(), *ALSO_BAD]
    rows = []
    for _, change in faults:
        rows += [row(), row(**change)]
    write_rows(tmp_path / "a.parquet", rows)
    manifest, _ = build_serially(config_of(tmp_path / "a.parquet", tmp_path / "out", **ANY))
    listed = pq.read_table(tmp_path / "out" / "latest" / "rejects").to_pylist()
    assert [(entry["row"], entry["reason"]) for entry in listed] == [
        (2 * number + 1, reason) for number, (reason, _) in enumerate(faults)
    ]
    assert {entry["source_file"] for entry in listed} == {"a.parquet"}
    assert all(entry["detail"] for entry in listed)
    assert manifest.ledger.rows_used == len(faults)
    assert manifest.ledger.rejected == {
        reason: sum(reason == other for other, _ in faults) for reason in sorted(BAD)
    }
    assert validate_probes(tmp_path / "out" / "latest", manifest, full=True).faults == ()


@pytest.mark.parametrize(
    "change",
    [
        {"rtt": -1.0}, {"rtt": -999_999_999.0}, {"rtt": 0.0}, {"rtt": 4_294_967.0},
        {"event_time": datetime.datetime(1970, 1, 1)},
        {"event_time": datetime.datetime(2106, 2, 7, 6, 28, 15, 999_999)},
        {"ip_version": None},
        {"src_addr": "2001:DB8::1", "dst_addr": "::ffff:192.0.2.1", "ip_version": 6},
    ],
)  # fmt: skip
def test_unusual_rows_that_are_kept(tmp_path: Path, change: dict[str, Any]) -> None:
    write_rows(tmp_path / "a.parquet", [row(**change)])
    manifest, _ = build_serially(config_of(tmp_path / "a.parquet", tmp_path / "out", train_ratio=1.0))
    [record] = records(tmp_path / "out" / "latest")
    wanted = row(**{"ip_version": 4, **{key: value for key, value in change.items() if value is not None}})
    assert record["src_addr"] == wanted.pop("src_addr")
    assert record["measurements"] == [{**wanted, "rtt": np.float32(wanted["rtt"])}]
    assert validate_probes(tmp_path / "out" / "latest", manifest, full=True).faults == ()


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin", "+03:00"])
def test_times_of_any_unit_and_zone_are_the_same_instant(tmp_path: Path, unit: str, zone: str | None) -> None:
    schema = SCHEMA.set(0, pa.field("event_time", pa.timestamp(unit, zone)))
    moment = START if zone is None else START.replace(tzinfo=datetime.UTC)
    write_rows(tmp_path / "a.parquet", [row(event_time=moment)], schema)
    manifest, _ = build_serially(config_of(tmp_path / "a.parquet", tmp_path / "out", train_ratio=1.0))
    [record] = records(tmp_path / "out" / "latest")
    assert record["first_timestamp"] == START
    assert validate_probes(tmp_path / "out" / "latest", manifest, full=True).faults == ()


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_nanoseconds_are_rounded_down(tmp_path: Path, zone: str | None) -> None:
    times = pa.array([1_599_523_200_000_001_999, 1_599_523_200_000_001_000]).cast(pa.timestamp("ns", zone))
    rest = {name: [row()[name]] * 2 for name in SCHEMA.names[1:]}
    pq.write_table(pa.table({"event_time": times, **rest}), tmp_path / "a.parquet")
    manifest, _ = build_serially(config_of(tmp_path / "a.parquet", tmp_path / "out", train_ratio=1.0))
    [record] = records(tmp_path / "out" / "latest")
    assert {m["event_time"] for m in record["measurements"]} == {START + datetime.timedelta(microseconds=1)}
    assert validate_probes(tmp_path / "out" / "latest", manifest, full=True).faults == ()


@pytest.mark.parametrize("unit", ["s", "ms", "ns"])
def test_times_out_of_range_in_other_units(tmp_path: Path, unit: str) -> None:
    per_second = {"s": 1, "ms": 10**3, "ns": 10**9}[unit]
    end = 2**32 * per_second
    values = [-1, 0, end - 1, end, None, -(2**63) + 5, 2**63 - 5]
    table = pa.table(
        {
            "event_time": pa.array(values, pa.int64()).cast(pa.timestamp(unit)),
            **{name: [row()[name]] * len(values) for name in SCHEMA.names[1:]},
        }
    )
    # Parquet stores seconds as milliseconds, in which the last two would not fit.
    table = table.slice(0, 5) if unit == "s" else table
    pq.write_table(table, tmp_path / "a.parquet")
    manifest, _ = build_serially(config_of(tmp_path / "a.parquet", tmp_path / "out", **ANY))
    more = 0 if unit == "s" else 1
    wanted = {"null_time": 1, "time_after_2106": 1 + more, "time_before_1970": 1 + more}
    assert manifest.ledger.rejected == wanted
    assert manifest.ledger.rows_used == 2


@pytest.mark.parametrize(
    ("column", "kind", "value"),
    [
        ("rtt", pa.float64(), 12.5), ("rtt", pa.float16(), 12.5), ("rtt", pa.int32(), 12),
        ("rtt", pa.decimal128(9, 3), Decimal("12.5")),
        ("ip_version", pa.int64(), 4), ("ip_version", pa.uint8(), 4), ("ip_version", pa.uint64(), 4),
        ("src_addr", pa.large_string(), "192.0.2.1"),
        ("src_addr", pa.dictionary(pa.int8(), pa.large_string()), "192.0.2.1"),
        ("dst_addr", pa.string_view(), "198.51.100.7"),
        ("event_time", pa.string(), "2020-09-08T00:00:00"), ("event_time", pa.large_string(), "2020-09-08 02:00+02"),
        ("ip_version", pa.float32(), 4.0), ("ip_version", pa.string(), "4"),
        ("rtt", pa.string(), "12.5"), ("rtt", pa.dictionary(pa.int8(), pa.string()), "12.5"),
    ],
)  # fmt: skip
def test_other_types_that_fit(tmp_path: Path, column: str, kind: pa.DataType, value: Any) -> None:
    schema = SCHEMA.set(SCHEMA.get_field_index(column), pa.field(column, kind))
    write_rows(tmp_path / "a.parquet", [row(**{column: value})] * 2, schema)
    write_rows(tmp_path / "b.parquet", [row()])
    build_serially(config_of(str(tmp_path / "*.parquet"), tmp_path / "out", train_ratio=1.0))
    [record] = records(tmp_path / "out" / "latest")
    assert record["n_measurements"] == 3
    assert record["measurements"][2]["rtt"] == 12.5
    assert record["measurements"][0]["rtt"] in (12.0, 12.5)


@pytest.mark.parametrize(
    ("column", "kind", "value", "allowed"),
    [
        ("event_time", pa.int64(), 5, "a timestamp"),
        ("event_time", pa.date32(), datetime.date(2020, 1, 1), "a timestamp"),
        ("src_addr", pa.int64(), 3, "a string"),
        ("dst_addr", pa.binary(), b"192.0.2.1", "a string"),
        ("ip_version", pa.list_(pa.int8()), [4], "a number"),
        ("rtt", pa.binary(), b"1.5", "a number"),
        ("rtt", pa.list_(pa.float32()), [1.5], "a number"),
    ],
)
def test_wrong_column_types(tmp_path: Path, column: str, kind: pa.DataType, value: Any, allowed: str) -> None:
    schema = SCHEMA.set(SCHEMA.get_field_index(column), pa.field(column, kind))
    write_rows(tmp_path / "a.parquet", [row(**{column: value})], schema)
    with pytest.raises(InputError) as caught:
        build_serially(config_of(tmp_path / "a.parquet", tmp_path / "out"))
    assert f"column {column!r} is " in caught.value.message and f"not {allowed}" in caught.value.message


def test_all_files_that_cannot_be_used_are_named_before_anything_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write_rows(folder / "good.parquet", [row()])
    write_rows(folder / "less.parquet", [{}], pa.schema([field for field in SCHEMA if field.name != "rtt"]))
    whole = write_rows(folder / "torn.parquet", [row()] * 50).read_bytes()
    (folder / "torn.parquet").write_bytes(whole[: len(whole) // 2])
    (folder / "text.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(InputError) as caught:
        build_serially(config_of(folder, tmp_path / "out"))
    assert caught.value.code == "bad_files" and "3 files" in caught.value.message
    for name in ("less.parquet: no single column rtt", "torn.parquet", "text.parquet"):
        assert name in caught.value.message
    assert not (tmp_path / "out" / "runs").exists()


def test_a_page_damaged_behind_a_good_footer_stops_the_run(tmp_path: Path) -> None:
    rows = [row(dst_addr=f"198.51.100.{i % 250}", rtt=float(i)) for i in range(500)]
    path = write_rows(tmp_path / "a.parquet", rows)
    data = bytearray(path.read_bytes())
    data[300:340] = bytes(40)
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        build_serially(config_of(path, tmp_path / "out"))
    assert (caught.value.code, caught.value.where) == ("bad_parquet", "a.parquet")
    assert not (tmp_path / "out" / "latest").exists()


def test_empty_inputs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as missing:
        build_serially(config_of(tmp_path / "nowhere", tmp_path / "out"))
    assert missing.value.code == "missing_path"
    write_rows(tmp_path / "in" / "a.parquet", [])
    with pytest.raises(InputError) as caught:
        build_serially(config_of(tmp_path / "in", tmp_path / "out"))
    assert caught.value.code == "empty_input"
    write_rows(tmp_path / "in" / "b.parquet", [row(rtt=None)])
    with pytest.raises(InputError) as caught:
        build_serially(config_of(tmp_path / "in", tmp_path / "out", max_reject_fraction=1.0))
    assert caught.value.code == "empty_input" and "null_rtt: 1" in caught.value.message
    write_rows(tmp_path / "in" / "c.parquet", [row()])
    manifest, _ = build_serially(config_of(tmp_path / "in", tmp_path / "out", **ANY))
    assert manifest.ledger.rows_used == 1


def test_too_many_rejects_stop_the_run_and_say_where_they_are_listed(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.parquet", [row()] * 9 + [row(rtt=None)])
    with pytest.raises(IntegrityError) as caught:
        build_serially(config_of(tmp_path / "a.parquet", tmp_path / "out", train_ratio=1.0))
    assert caught.value.code == "reject_limit" and "null_rtt: 1" in caught.value.message
    listed = caught.value.message.rpartition(" ")[2]
    assert pq.read_table(listed)["row"].to_pylist() == [9]
    build_serially(
        config_of(tmp_path / "a.parquet", tmp_path / "out", max_reject_fraction=0.1, train_ratio=1.0)
    )


def test_addresses_that_are_not_utf8_are_rejected(tmp_path: Path) -> None:
    values = pa.array([b"192.0.2.1", b"\xff\xfe", b"192.0.2.1"], pa.binary())
    broken = pa.StringArray.from_buffers(3, values.buffers()[1], values.buffers()[2])
    rest = {name: [row()[name]] * 3 for name in SCHEMA.names if name != "src_addr"}
    pq.write_table(pa.table({**rest, "src_addr": broken}), tmp_path / "a.parquet")
    manifest, _ = build_serially(config_of(tmp_path / "a.parquet", tmp_path / "out", **ANY))
    assert manifest.ledger.rejected == {"bad_src_addr": 1}
    assert records(tmp_path / "out" / "latest")[0]["n_measurements"] == 2


def test_a_split_without_train_probes_is_refused(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.parquet", [row()])
    with pytest.raises(IntegrityError) as caught:
        build_serially(config_of(tmp_path / "a.parquet", tmp_path / "out", train_ratio=1e-9))
    assert caught.value.code == "empty_train"


KILLED = """
import sys, json
from measurements import build_serially
from schemas.probes import BuildProbeRowsConfig
build_serially(BuildProbeRowsConfig.parse(json.loads(sys.argv[1])))
"""


def test_kill_9_at_any_moment_and_run_again(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for number in range(6):
        table = random_table(np.random.default_rng(number), 20_000, 400)
        pq.write_table(table, source / f"m{number}.parquet", row_group_size=5_000)
    changes = {"max_record_bytes": 8_192}
    build_serially(config_of(source, tmp_path / "reference", **changes))
    expected = published_digests(tmp_path / "reference" / "latest")
    output_dir = tmp_path / "out"
    raw = {"input": str(source), "output_dir": str(output_dir), **changes}
    paths = [ROOT, ROOT / "tests", ROOT / "tests" / "probes"]
    seen: set[str] = set()
    for awaited in (".spill.", ".spill", ".tmp-part-000000", "part-000000", "manifest.json"):
        child = subprocess.Popen(
            [sys.executable, "-c", KILLED, json.dumps(raw)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 60
        while child.poll() is None and time.monotonic() < deadline:
            names = {path.name for path in output_dir.rglob("*")} if output_dir.exists() else set()
            if any(awaited in name for name in names - seen):
                child.send_signal(signal.SIGKILL)
            time.sleep(0.002)
        child.wait()
        seen = {path.name for path in output_dir.rglob("*")}
        latest = output_dir / "latest"
        assert not latest.is_symlink() or (latest / "manifest.json").is_file()
        for shard in output_dir.rglob("*.arrayrecord"):
            if not shard.name.startswith(".tmp-"):
                assert ArrayRecordReader(str(shard)).num_records() > 0
    manifest, _ = build_serially(BuildProbeRowsConfig.parse(raw))
    assert published_digests(output_dir / "latest") == expected
    assert validate_probes(output_dir / "latest", manifest, full=False).faults == ()
    assert not list((output_dir / "runs").rglob(".tmp-*"))
