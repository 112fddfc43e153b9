"""Inspection of probe rows, on records made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from probes.records import measurements, record, write_records

from schemas.errors import InputError
from schemas.inspection import Inspection
from tasks.outputs.found import Outputs
from tasks.outputs.probe_rows import inspect_probes, measurement_batches, query_probes

START_US = 1_600_000_000_000_000


def probe(number: int, count: int) -> bytes:
    """A record of so many measurements, one a second; the first has failed, every third goes to an IPv6 address."""
    rows = [
        (START_US + n * 10**6, "2001:db8::1" if n % 3 == 2 else "192.0.2.1", -1.0 if n == 0 else n + 0.5)
        for n in range(count)
    ]
    return record(f"10.0.0.{number}", measurements(rows))


@pytest.fixture
def outputs(tmp_path: Path) -> Outputs:
    """Two shards: probes of 3, 9 and 70 measurements."""
    files = (
        write_records(tmp_path / "1.arrayrecord", [probe(0, 3), probe(1, 9)]),
        write_records(tmp_path / "2.arrayrecord", [probe(2, 70)]),
    )
    return Outputs(str(tmp_path), "probe rows", files)


def values(found: Inspection) -> dict[str, str]:
    return {fact.label: fact.value for fact in found.facts}


def test_records_and_measurements_are_counted(outputs: Outputs) -> None:
    found = inspect_probes(outputs, 0, 0)
    counted = values(found)
    assert (counted["records"], counted["measurements"]) == ("3", "82")
    assert (counted["failed"], counted["IPv6"]) == (f"{300 / 82:.1f}%", f"{100 * (1 + 3 + 23) / 82:.1f}%")
    assert [(fact.label, fact.hint) for fact in found.facts if fact.label in ("records", "stored")] == [
        ("records", "of 3 probes"),
        ("stored", "in 2 shards"),
    ]
    sizes = found.charts[0]
    counted = dict(zip(sizes.labels, map(str, sizes.series[0].values), strict=True))
    assert {name: value for name, value in counted.items() if value != "0.0"} == {
        "4": "1.0", "16": "1.0", "128": "1.0",
    }  # fmt: skip
    assert found.tables == ()


@pytest.mark.parametrize(
    ("rows", "first", "titles"),
    [
        (1, 0, ["Record 0: 10.0.0.0, 3 measurements"]),
        (2, 1, ["Record 1: 10.0.0.1, 9 measurements", "Record 2: 10.0.0.2, 70 measurements"]),
        (1, 3, []),
    ],
)
def test_records_are_shown_from_any_number_on(
    rows: int, first: int, titles: list[str], outputs: Outputs
) -> None:
    *records, crop = inspect_probes(outputs, rows, first).tables
    assert [table.title for table in records] == titles
    assert crop.title == "A crop, decoded from its tokens" and crop.rows
    assert [len(table.rows) for table in records] == [min(8, int(title.split()[-2])) for title in titles]


def test_measurements_are_shown_as_they_are(outputs: Outputs) -> None:
    [record, _] = inspect_probes(outputs, 1, 1).tables
    assert record.rows[0] == ("2020-09-13 12:26:40", "192.0.2.1", "4", "failed")
    assert record.rows[2] == ("2020-09-13 12:26:42", "2001:db8::1", "6", "2.500 ms")
    assert record.note == "and 1 more"


def test_every_measurement_can_be_queried_with_its_probe(outputs: Outputs) -> None:
    table = measurement_batches(outputs).read_all()
    assert table.num_rows == 82
    assert table.column_names[:6] == ["split", "path", "shard", "record", "src_id", "src_addr"]
    places = [("1.arrayrecord", 0)] * 3 + [("1.arrayrecord", 1)] * 9 + [("2.arrayrecord", 0)] * 70
    assert list(zip(table["path"].to_pylist(), table["record"].to_pylist(), strict=True)) == places
    assert table["src_addr"].value_counts().to_pylist() == [
        {"values": f"10.0.0.{n}", "counts": count} for n, count in enumerate((3, 9, 70))
    ]
    assert list(query_probes(outputs).streams) == ["measurements"]


def test_no_record_and_a_damaged_file(tmp_path: Path) -> None:
    empty = write_records(tmp_path / "e.arrayrecord", [])
    assert values(inspect_probes(Outputs("e", "probe rows", (empty,)), 1, 0))["records"] == "0"
    bad = tmp_path / "b.arrayrecord"
    bad.write_text("no records")
    with pytest.raises(InputError) as caught:
        inspect_probes(Outputs("b", "probe rows", (bad,)), 0, 0)
    assert caught.value.where == str(bad)
