"""Measurements in other formats, under other names and in other types give the records of the Parquet file."""

from __future__ import annotations

import bz2
import csv
import datetime
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from measurements import (
    ATLAS,
    SCHEMA,
    START,
    build_serially,
    config_of,
    random_table,
    raw_records,
    records,
    row,
    write_rows,
)

from schemas.errors import ConfigError, InputError
from schemas.probes import BuildProbeRowsConfig
from tasks.probes.identity import identify
from tasks.probes.inventory import take_inventory
from tasks.probes.proof import compare
from tasks.probes.validate import validate_probes

ONE = {"train_ratio": 1.0}
THEIRS = {
    "event_time": "ts",
    "src_addr": "source",
    "dst_addr": "to, address",
    "ip_version": "af",
    "rtt": 'r"t',
}
SECONDS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def table(rows: int = 1_500) -> pa.Table:
    """Random measurements without NaN, which JSON does not have."""
    made = random_table(np.random.default_rng(11), rows, 60)
    return made.filter(pa.compute.invert(pa.compute.is_nan(made["rtt"]).fill_null(False)))


def to_csv(rows: list[dict[str, Any]]) -> bytes:
    text = io.StringIO(newline="")
    # A column that is not read, with quotes and line breaks.
    writer = csv.DictWriter(text, ["note", *rows[0]])
    writer.writeheader()
    writer.writerows({"note": 'a "b",\nc', **entry} for entry in rows)
    return text.getvalue().encode()


def to_ndjson(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps({"more": [1], **entry}, default=str).encode() + b"\n\n" for entry in rows)


FORMATS: dict[str, Callable[[list[dict[str, Any]]], bytes]] = {
    "a.csv": to_csv,
    "a.csv.gz": lambda rows: gzip.compress(to_csv(rows)),
    "a.csv.zst": lambda rows: pa.compress(to_csv(rows), "zstd", asbytes=True),
    "a.ndjson": to_ndjson,
    "a.jsonl.gz": lambda rows: gzip.compress(to_ndjson(rows)),
    "a.ndjson.zst": lambda rows: pa.compress(to_ndjson(rows), "zstd", asbytes=True),
    "a.ndjson.bz2": lambda rows: bz2.compress(to_ndjson(rows)),
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], list[bytes], Any]:
    folder = tmp_path_factory.mktemp("reference")
    pq.write_table(table(), folder / "a.parquet", row_group_size=400)
    manifest, _ = build_serially(config_of(folder / "a.parquet", folder / "out"))
    return table().to_pylist(), raw_records(folder / "out" / "latest"), manifest


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("renamed", [False, True])
def test_text_gives_the_records_of_parquet(
    tmp_path: Path, name: str, renamed: bool, reference: tuple[list[dict[str, Any]], list[bytes], Any]
) -> None:
    rows, wanted, parquet = reference
    if renamed:
        rows = [{THEIRS[key]: value for key, value in entry.items()} for entry in rows]
    (tmp_path / name).write_bytes(FORMATS[name](rows))
    columns = {"columns": THEIRS} if renamed else {}
    manifest, _ = build_serially(config_of(tmp_path / name, tmp_path / "out", **columns))
    folder = tmp_path / "out" / "latest"
    assert raw_records(folder) == wanted
    assert manifest.ledger == parquet.ledger
    assert manifest.statistics == parquet.statistics
    # Blank lines have numbers in NDJSON, as in every text of lines; a CSV row may have several lines.
    step = 1 if "csv" in name else 2
    nulls = [step * number for number, entry in enumerate(rows) if entry['r"t' if renamed else "rtt"] is None]
    assert [entry["row"] for entry in pq.read_table(folder / "rejects").to_pylist()] == nulls
    assert validate_probes(folder, manifest, full=True).faults == ()


@pytest.mark.parametrize("unit", SECONDS)
@pytest.mark.parametrize("form", ["int", "double", "text", "csv", "ndjson"])
def test_epoch_numbers_with_a_unit(
    tmp_path: Path, unit: str, form: str, reference: tuple[list[dict[str, Any]], list[bytes], Any]
) -> None:
    rows, wanted, _ = reference
    epochs = [
        int(entry["event_time"].replace(tzinfo=datetime.UTC).timestamp()) * SECONDS[unit] for entry in rows
    ]
    name = {"csv": "a.csv", "ndjson": "a.ndjson"}.get(form, "a.parquet")
    numbered = [{**entry, "event_time": time} for entry, time in zip(rows, epochs, strict=True)]
    if name != "a.parquet":
        (tmp_path / name).write_bytes(FORMATS[name](numbered))
    else:
        convert = {"int": int, "double": float, "text": str}[form]
        times = pa.array([convert(time) for time in epochs])
        pq.write_table(table().set_column(0, "event_time", times), tmp_path / name)
    config = config_of(tmp_path / name, tmp_path / "out", event_time_unit=unit)
    manifest, _ = build_serially(config)
    assert raw_records(tmp_path / "out" / "latest") == wanted
    assert validate_probes(tmp_path / "out" / "latest", manifest, full=True).faults == ()


MICRO = datetime.timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("value", "unit", "micros"),
    [
        (1_599_523_200.123456, "s", 123_456),
        ("1599523200.123456", "s", 123_456),
        (1_599_523_200_123.456, "ms", 123_456),
        ("1599523200123456.4", "us", 123_456),
        (1_599_523_200_123_456_789, "ns", 123_456),
        ("1599523200123456789", "ns", 123_456),
        ("+1599523200123456789", "ns", 123_456),
        ("+1599523200.123456", "s", 123_456),
        ("1.5995232e9", "s", 0),
        ("2020-09-08T00:00:00.123456789Z", None, 123_456),
        ("2020-09-08 02:00:00.5+02:00", "s", 500_000),
        ("2020-09-07T22:30:00.25-0130", None, 250_000),
        ("2020-09-08T00:00", None, 0),
        ("2020-09-08 00:00:00,5", None, 500_000),
    ],
)
@pytest.mark.parametrize("company", [None, "2020-09-08T00:00:00", "2020-09-08T00:00:00Z"])
def test_times_are_the_same_instant_in_any_company(
    tmp_path: Path, value: Any, unit: str | None, micros: int, company: str | None
) -> None:
    others = [] if company is None else [row(event_time=company)]
    (tmp_path / "a.ndjson").write_bytes(to_ndjson([row(event_time=value), *others]))
    changes = {} if unit is None else {"event_time_unit": unit}
    manifest, _ = build_serially(config_of(tmp_path / "a.ndjson", tmp_path / "out", **ONE, **changes))
    [record] = records(tmp_path / "out" / "latest")
    assert record["last_timestamp"] == START + micros * MICRO
    assert validate_probes(tmp_path / "out" / "latest", manifest, full=True).faults == ()


UNREADABLE_TIMES = (
    "yesterday", "", "2020-09-08", "2020-02-30T00:00", "2020-09-08T24:00", "2020-09-08T00:00:60",
    "20200908T000000", " 2020-09-08T00:00", "2020-09-08T00:00 UTC", "1_000", "0x10", "2020-09-08T00:00+25:00",
    "\u0661\u0662", True, {}, [5],
)  # fmt: skip
BAD: list[tuple[str, dict[str, Any]]] = [
    *[("bad_time", {"event_time": value}) for value in UNREADABLE_TIMES],
    ("null_time", {"event_time": None}),
    ("time_before_1970", {"event_time": -1}),
    ("time_before_1970", {"event_time": "-0.000001"}),
    ("time_before_1970", {"event_time": "1969-12-31T23:59:59.999999"}),
    ("time_before_1970", {"event_time": "1970-01-01T00:00:00+00:01"}),
    ("time_after_2106", {"event_time": 2**32}),
    ("time_after_2106", {"event_time": 10**30}),
    ("time_after_2106", {"event_time": "9999-12-31T23:59:59"}),
    *[("bad_rtt", {"rtt": value}) for value in ("fast", "", "1,5", "1.5ms", "*", "--1", True, [1.5], {"a": 1})],
    ("nan_rtt", {"rtt": "NaN"}),
    ("huge_rtt", {"rtt": "inf"}),
    ("huge_rtt", {"rtt": "1e999"}),
    ("huge_rtt", {"rtt": 10**40}),
    ("null_rtt", {"rtt": None}),
    *[("ip_version", {"ip_version": value}) for value in ("IPv4", "", "6", 6.0, 4.5, 5, 2**70, "4 ", False)],
    ("null_src_addr", {"src_addr": None}),
    ("bad_src_addr", {"src_addr": 3_221_225_985}),
    ("bad_dst_addr", {"dst_addr": ""}),
    ("bad_dst_addr", {"dst_addr": {"ip": "192.0.2.1"}}),
]  # fmt: skip


def test_values_that_cannot_be_read_are_rejected_rows(tmp_path: Path) -> None:
    good = [
        row(event_time=1_599_523_200), row(event_time="1599523200.0", rtt="12.5", ip_version="4"),
        row(event_time=START.isoformat(), rtt="-1", ip_version=4.0),
    ]  # fmt: skip
    rows = [entry for _, change in BAD for entry in (*good, {**good[0], **change})]
    lines = b"".join(json.dumps(entry).encode() + b"\n" for entry in rows)
    (tmp_path / "a.ndjson").write_bytes(lines)
    changes = {"event_time_unit": "s", "max_reject_fraction": 0.5, **ONE}
    manifest, _ = build_serially(config_of(tmp_path / "a.ndjson", tmp_path / "out", **changes))
    listed = pq.read_table(tmp_path / "out" / "latest" / "rejects").to_pylist()
    assert [(entry["row"], entry["reason"]) for entry in listed] == [
        (4 * number + 3, reason) for number, (reason, _) in enumerate(BAD)
    ]
    assert all(entry["detail"] for entry in listed)
    assert manifest.ledger.rows_used == 3 * len(BAD)
    [record] = records(tmp_path / "out" / "latest")
    assert {m["rtt"] for m in record["measurements"]} == {12.5, -1.0}
    assert {m["event_time"] for m in record["measurements"]} == {START}
    assert validate_probes(tmp_path / "out" / "latest", manifest, full=True).faults == ()


def test_values_in_parquet_columns_of_text_and_doubles(tmp_path: Path) -> None:
    rows = {
        "event_time": ["2020-09-08T00:00:00", "1599523200", None, "2020-09-08T00:00:00", "x"],
        "src_addr": ["192.0.2.1"] * 5,
        "dst_addr": ["198.51.100.7"] * 5,
        "ip_version": [4.0, float("nan"), 4.0, 6.0, 4.0],
        "rtt": ["12.5", "1e1", "1", "2", "3"],
    }
    pq.write_table(pa.table(rows), tmp_path / "a.parquet", row_group_size=2)
    changes = {"event_time_unit": "s", "max_reject_fraction": 1.0, **ONE}
    manifest, _ = build_serially(config_of(tmp_path / "a.parquet", tmp_path / "out", **changes))
    assert manifest.ledger.rejected == {"bad_time": 1, "ip_version": 1, "null_time": 1}
    [record] = records(tmp_path / "out" / "latest")
    assert [(m["event_time"], m["rtt"]) for m in record["measurements"]] == [(START, 12.5), (START, 10.0)]
    assert validate_probes(tmp_path / "out" / "latest", manifest, full=True).faults == ()


def csv_of(*rows: dict[str, Any]) -> bytes:
    """CSV of good measurements, changed by `rows`; times as text."""
    entries = [row(event_time="2020-09-08T00:00:00") | change for change in rows]
    return "\n".join([",".join(entries[0]), *(",".join(map(str, e.values())) for e in entries), ""]).encode()


@pytest.mark.parametrize("version", ["NaN", "-nan", "+NAN", "nan", ""])
def test_a_version_that_is_not_a_number_is_missing(tmp_path: Path, version: str) -> None:
    (tmp_path / "a.csv").write_bytes(csv_of({}, {"ip_version": version}))
    manifest, _ = build_serially(config_of(tmp_path / "a.csv", tmp_path / "out", **ONE))
    assert (manifest.ledger.rows_used, manifest.ledger.rejected) == (2, {})
    assert validate_probes(tmp_path / "out" / "latest", manifest, full=True).faults == ()


@pytest.mark.parametrize("note", ["text", "1.5", "\xe9"])
def test_the_proof_does_not_look_at_columns_that_nobody_reads(
    tmp_path: Path, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only the last block of the file shows that the column is text.
    monkeypatch.setattr("tasks.probes.plain_source._BLOCK_BYTES", 4096)
    (tmp_path / "a.csv").write_bytes(csv_of(*[{"note": 7}] * 300, {"note": note}))
    manifest, _ = build_serially(config_of(tmp_path / "a.csv", tmp_path / "out", **ONE))
    assert manifest.ledger.rows_used == 301
    assert validate_probes(tmp_path / "out" / "latest", manifest, full=True).faults == ()


def test_an_error_of_the_proof_is_told_in_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Any:
        raise InputError("the disk says no", code="unreadable", where="a.csv")
        yield

    (tmp_path / "a.csv").write_bytes(csv_of({}))
    manifest, _ = build_serially(config_of(tmp_path / "a.csv", tmp_path / "out", **ONE))
    monkeypatch.setattr("tasks.probes.proof.plain_batches", fail)
    [fault] = validate_probes(tmp_path / "out" / "latest", manifest, full=True).faults
    assert (fault.rule, fault.detail) == ("proof", "the contents could not be proved: the disk says no")


@pytest.mark.parametrize("column", ["src_addr", "dst_addr", "event_time", "rtt"])
def test_half_a_character_is_a_rejected_row_for_the_proof_too(tmp_path: Path, column: str) -> None:
    good = row(event_time=START.isoformat())
    lines = [json.dumps(entry) for entry in (good, {**good, column: "\ud800"}, good)]
    (tmp_path / "a.ndjson").write_text("\n".join(lines))
    config = config_of(tmp_path / "a.ndjson", tmp_path / "out", max_reject_fraction=1.0, **ONE)
    manifest, _ = build_serially(config)
    assert (manifest.ledger.rows_used, sum(manifest.ledger.rejected.values())) == (2, 1)
    assert validate_probes(tmp_path / "out" / "latest", manifest, full=True).faults == ()


@pytest.mark.parametrize("extra", ["RTT", "Ip_Version", "IP_VERSION_1"])
def test_columns_may_differ_in_case_only(tmp_path: Path, extra: str) -> None:
    given = pa.Table.from_pylist([row(), row(rtt=3.0)], schema=SCHEMA)
    pq.write_table(given.add_column(0, extra, pa.array([6.0, 6.0])), tmp_path / "a.parquet")
    manifest, _ = build_serially(config_of(tmp_path / "a.parquet", tmp_path / "out", **ONE))
    [record] = records(tmp_path / "out" / "latest")
    assert [m["rtt"] for m in record["measurements"]] == [12.5, 3.0]
    assert validate_probes(tmp_path / "out" / "latest", manifest, full=True).faults == ()


def test_a_version_column_without_a_type_is_missing(tmp_path: Path) -> None:
    entries = [row(), row(src_addr="2001:db8::1", dst_addr="2001:db8::2")]
    given = pa.Table.from_pylist(entries, schema=SCHEMA).set_column(3, "ip_version", pa.nulls(2))
    pq.write_table(given, tmp_path / "a.parquet")
    manifest, _ = build_serially(config_of(tmp_path / "a.parquet", tmp_path / "out", **ONE))
    found = [m["ip_version"] for r in records(tmp_path / "out" / "latest") for m in r["measurements"]]
    assert sorted(found) == [4, 6]
    assert validate_probes(tmp_path / "out" / "latest", manifest, full=True).faults == ()


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64(), pa.decimal128(5, 2), pa.uint64()])
def test_versions_and_round_trips_of_any_number_type(tmp_path: Path, kind: pa.DataType) -> None:
    rows = [row(), row(ip_version=6), row(ip_version=None), row(rtt=8.0)]
    given = pa.Table.from_pylist(rows, schema=SCHEMA)
    given = given.set_column(3, "ip_version", given["ip_version"].cast(kind))
    given = given.set_column(4, "rtt", pa.array([2.0, 4.0, 6.0, 8.0]).cast(kind))
    pq.write_table(given, tmp_path / "a.parquet")
    config = config_of(tmp_path / "a.parquet", tmp_path / "out", max_reject_fraction=0.5, **ONE)
    manifest, _ = build_serially(config)
    assert manifest.ledger.rejected == {"ip_version": 1}
    [record] = records(tmp_path / "out" / "latest")
    assert [(m["ip_version"], m["rtt"]) for m in record["measurements"]] == [(4, 2.0), (4, 6.0), (4, 8.0)]
    assert validate_probes(tmp_path / "out" / "latest", manifest, full=True).faults == ()


def test_the_first_rows_of_ndjson_may_lack_a_column(tmp_path: Path) -> None:
    good = row(event_time=START.isoformat())
    lost = {name: value for name, value in good.items() if name != "rtt"}
    path = tmp_path / "a.ndjson"
    path.write_bytes(to_ndjson([lost] * 600 + [good] * 2_000))
    config = config_of(path, tmp_path / "out", max_reject_fraction=0.5, **ONE)
    manifest, _ = build_serially(config)
    assert (manifest.ledger.rows_used, manifest.ledger.rejected) == (2_000, {"null_rtt": 600})
    assert validate_probes(tmp_path / "out" / "latest", manifest, full=True).faults == ()
    path.write_bytes(to_ndjson([lost] * 600))
    with pytest.raises(InputError, match="no single column rtt"):
        build_serially(config)


def test_text_that_is_not_utf8_is_a_rejected_row(tmp_path: Path) -> None:
    times = pa.array([b"2020-09-08T00:00:00", b"\xff\xfe"]).view(pa.string())
    rest = {name: [row()[name]] * 2 for name in SCHEMA.names[1:4]}
    rtts = pa.array([b"\xe9", b"1"]).view(pa.string())
    pq.write_table(pa.table({"event_time": times, **rest, "rtt": rtts}), tmp_path / "bad.parquet")
    write_rows(tmp_path / "good.parquet", [row()])
    config = config_of(str(tmp_path / "*.parquet"), tmp_path / "out", max_reject_fraction=1.0, **ONE)
    manifest, _ = build_serially(config)
    assert manifest.ledger.rejected == {"bad_rtt": 1, "bad_time": 1}


@pytest.mark.parametrize("ending", ["parquet", "csv", "ndjson"])
def test_the_version_may_be_missing_or_ignored(tmp_path: Path, ending: str) -> None:
    rows = [row(), row(src_addr="2001:db8::1", dst_addr="2001:db8::2"), row(dst_addr="2001:db8::2")]
    for entry in rows:
        del entry["ip_version"]

    def write(name: str, entries: list[dict[str, Any]]) -> Path:
        path = tmp_path / f"{name}.{ending}"
        if ending == "parquet":
            pq.write_table(pa.Table.from_pylist(entries), path)
        else:
            path.write_bytes(FORMATS[f"a.{ending}"](entries))
        return path

    changes = {"max_reject_fraction": 0.5, **ONE}
    without = write("without", rows)
    manifest, _ = build_serially(config_of(without, tmp_path / "out", **changes))
    assert manifest.ledger.rejected == {"ip_version": 1}
    assert {m["ip_version"] for r in records(tmp_path / "out" / "latest") for m in r["measurements"]} == {
        4,
        6,
    }
    assert validate_probes(tmp_path / "out" / "latest", manifest, full=True).faults == ()
    codes = write("codes", [{**entry, "ip_version": 2} for entry in rows])
    ignored = {"columns": {"ip_version": None}}
    manifest, _ = build_serially(config_of(codes, tmp_path / "ignored", **changes, **ignored))
    assert raw_records(tmp_path / "ignored" / "latest") == raw_records(tmp_path / "out" / "latest")
    assert validate_probes(tmp_path / "ignored" / "latest", manifest, full=True).faults == ()
    with pytest.raises(InputError, match="no single column af"):
        build_serially(config_of(without, tmp_path / "named", columns={"ip_version": "af"}))


@pytest.mark.parametrize("value", [1_599_523_200, 1_599_523_200.5, "1599523200"])
@pytest.mark.parametrize("ending", ["parquet", "csv", "ndjson"])
def test_a_number_without_a_unit_stops_before_any_work(tmp_path: Path, value: Any, ending: str) -> None:
    path = tmp_path / f"a.{ending}"
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist([row(event_time=value)]), path)
    else:
        path.write_bytes(FORMATS[f"a.{ending}"]([row(event_time=None), row(event_time=value)]))
    with pytest.raises(InputError) as caught:
        build_serially(config_of(path, tmp_path / "out"))
    assert caught.value.code == "bad_files"
    assert "set event_time_unit to s, ms, us or ns" in caught.value.message
    assert not (tmp_path / "out" / "runs").exists()


def test_rows_of_the_wrong_length_are_rejected_and_broken_quotes_stop(tmp_path: Path) -> None:
    good = "2020-09-08T00:00:00,192.0.2.1,198.51.100.7,4,12.5\n"
    header = ",".join(SCHEMA.names) + "\n"
    path = tmp_path / "a.csv"
    rows = header + good + "2020-09-08T00:00:00,192.0.2.1\n" + "\n" + good + good.strip() + ",\xe9\n" + good
    # Its broken row is not UTF-8.
    path.write_bytes(rows.encode("latin-1"))
    config = config_of(path, tmp_path / "out", max_reject_fraction=1.0, **ONE)
    manifest, _ = build_serially(config)
    listed = pq.read_table(tmp_path / "out" / "latest" / "rejects").to_pylist()
    assert [(entry["row"], entry["reason"]) for entry in listed] == [(1, "field_count"), (3, "field_count")]
    assert manifest.ledger.rows_used == 3
    assert validate_probes(tmp_path / "out" / "latest", manifest, full=True).faults == ()
    path.write_text(header + good + '"2020' + good + good)
    with pytest.raises(InputError) as caught:
        build_serially(config)
    assert caught.value.code in ("bad_csv", "bad_files") and "starts in line 3" in caught.value.message


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", b"event_time,src_addr,dst_addr\n1,2,3\n", "no single column rtt"),
        ("a.csv", b"event_time,src_addr,dst_addr,rtt,rtt\n", "no single column rtt"),
        ("a.ndjson", b'{"ts": 5}\n', "no single column event_time, src_addr, dst_addr, rtt (columns: ts)"),
        ("a.csv.gz", b"", "empty"),
        ("a.csv.zst", b"not zstd", "damaged"),
    ],
)  # fmt: skip
def test_text_that_cannot_be_measurements(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    write_rows(tmp_path / "good.parquet", [row()])
    with pytest.raises(InputError) as caught:
        build_serially(config_of([tmp_path / "good.parquet", tmp_path / name], tmp_path / "out"))
    assert caught.value.code == "bad_files"
    assert f"{name}: " in caught.value.message and said in caught.value.message


def test_empty_text(tmp_path: Path) -> None:
    for name, content in (
        ("a.csv", b""),
        ("b.csv", b"event_time,src_addr,dst_addr,rtt\n"),
        ("c.ndjson", b"\n"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError) as caught:
            build_serially(config_of(tmp_path / name, tmp_path / "out"))
        assert caught.value.code == "empty_input"


def test_formats_in_one_folder_are_refused_and_in_a_list_are_not(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write_rows(folder / "a.parquet", [row(rtt=1.0)])
    (folder / "b.csv").write_bytes(to_csv([row(rtt=2.0)]))
    (folder / "c.json").write_bytes(to_ndjson([row(rtt=3.0)]))
    with pytest.raises(ConfigError) as caught:
        build_serially(config_of(folder, tmp_path / "out"))
    assert caught.value.code == "mixed_formats" and "1 csv, 1 parquet" in caught.value.message
    for asked, rtts in (("parquet", [1.0]), ("csv", [2.0]), ("ndjson", [3.0])):
        build_serially(config_of(folder, tmp_path / asked, format=asked, **ONE))
        [record] = records(tmp_path / asked / "latest")
        assert [m["rtt"] for m in record["measurements"]] == rtts
    both = [folder / "a.parquet", folder / "b.csv"]
    manifest, _ = build_serially(config_of(both, tmp_path / "both", **ONE))
    [record] = records(tmp_path / "both" / "latest")
    assert [m["rtt"] for m in record["measurements"]] == [1.0, 2.0]
    assert validate_probes(tmp_path / "both" / "latest", manifest, full=True).faults == ()


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"event_tim": "ts"}, "did you mean 'event_time'"),
        ({"rtt": ""}, "at least 1 character"),
        ({"rtt": None}, "valid string"),
        ({"src_addr": "ip", "dst_addr": "ip"}, "the column 'ip' is named twice"),
    ],
)
def test_columns_that_cannot_be_meant(tmp_path: Path, columns: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match="columns") as caught:
        config_of(tmp_path, tmp_path / "out", columns=columns)
    assert said in caught.value.message


def test_settings_at_their_default_are_not_hashed() -> None:
    given: dict[str, Any] = {"input": "a", "output_dir": "b"}
    defaults = {
        "format": "auto",
        "columns": {"rtt": "rtt", "ip_version": "ip_version"},
        "event_time_unit": None,
    }
    assert BuildProbeRowsConfig.parse({**given, **defaults}).hash_fields() == {}
    mapped = BuildProbeRowsConfig.parse({**given, "columns": {"rtt": "ms"}, "event_time_unit": "s"})
    assert mapped.hash_fields() == {"columns": {"rtt": "ms"}, "event_time_unit": "s"}


@pytest.mark.parametrize("name", ["a.csv", "a.ndjson", "a.parquet"])
def test_the_proof_finds_one_changed_value(tmp_path: Path, name: str) -> None:
    rows = [row(rtt=float(number), event_time=f"2020-09-08T00:00:{number:02}") for number in range(60)]
    if name == "a.parquet":
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name)
    else:
        (tmp_path / name).write_bytes(FORMATS[name](rows))
    config = config_of(tmp_path / name, tmp_path / "out", **ONE)
    build_serially(config)
    [record] = records(tmp_path / "out" / "latest")
    found = pa.RecordBatch.from_pylist(
        record["measurements"], schema=pa.schema([field for field in SCHEMA if field.name != "src_addr"])
    )
    changed = found.set_column(3, "rtt", pa.array([*range(59), 59.5], pa.float32()))
    assert compare(config, identify(config), [], [("192.0.2.1", found)]) == []
    more, less = compare(config, identify(config), [], [("192.0.2.1", changed)])
    assert "1 measurements of the source" in more and "1 measurements of the records" in less


def test_another_mapping_reads_again_and_the_same_one_does_not(tmp_path: Path) -> None:
    rows = [{**row(rtt=float(number)), "other": float(100 + number)} for number in range(20)]
    (tmp_path / "a.csv").write_bytes(to_csv(rows))
    config = config_of(tmp_path / "a.csv", tmp_path / "out", **ONE)
    build_serially(config)
    _, again = build_serially(config)
    assert not [step for step, _ in again.executed if step in ("scatter", "gather")]
    build_serially(config_of(tmp_path / "a.csv", tmp_path / "out", columns={"rtt": "other"}, **ONE))
    [record] = records(tmp_path / "out" / "latest")
    assert [m["rtt"] for m in record["measurements"]] == [float(100 + number) for number in range(20)]


def test_text_is_read_in_parts_that_do_not_change_with_workers(tmp_path: Path) -> None:
    (tmp_path / "a.ndjson").write_bytes(to_ndjson(table(300).to_pylist()))
    first, second = (config_of(tmp_path / "a.ndjson", tmp_path / "out", workers=n) for n in (1, 7))
    assert take_inventory(first, identify(first)) == take_inventory(second, identify(second))


@pytest.mark.skipif(not ATLAS.is_dir(), reason="the real measurements are not here")
@pytest.mark.parametrize("ending", ["csv", "ndjson"])
def test_real_measurements_exported_by_duckdb(tmp_path: Path, ending: str) -> None:
    (tmp_path / "in").mkdir()
    how = "(header)" if ending == "csv" else "(format json)"
    for path in sorted(ATLAS.glob("*.parquet")):
        target = tmp_path / "in" / f"{path.stem}.{ending}"
        duckdb.sql(f"COPY (SELECT * FROM '{path}') TO '{target}' {how}")  # noqa: S608
    build_serially(config_of(ATLAS, tmp_path / "parquet"))
    manifest, _ = build_serially(config_of(tmp_path / "in", tmp_path / "text"))
    found = raw_records(tmp_path / "text" / "latest")
    assert found == raw_records(tmp_path / "parquet" / "latest") and len(found) > 500
    assert validate_probes(tmp_path / "text" / "latest", manifest, full=True).faults == ()
