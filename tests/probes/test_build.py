"""build-probe-rows as a whole: contents against DuckDB, order, spans, splits, and one result however it is made."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from measurements import ATLAS, build_serially, config_of, random_table, raw_records, records, row, write_rows
from support import published_digests

from schemas.errors import ConfigError, GristmillError, InputError, IntegrityError, MissingExtraError
from schemas.probes import BuildProbeRowsConfig, measurements_schema, record_schema
from schemas.run import RunManifest
from tasks.probes.identity import identify
from tasks.probes.inventory import take_inventory
from tasks.probes.proof import compare
from tasks.probes.records import writer as arrayrecord_writer
from tasks.probes.rows.reading import read_row_batches
from tasks.probes.validate import validate_probes, validate_records
from tasks.run.receipts import Verify


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files with 12,000 measurements, some null or NaN."""
    folder = tmp_path_factory.mktemp("measurements")
    for number in range(3):
        table = random_table(np.random.default_rng(number), 4_000, 180)
        pq.write_table(table, folder / f"m{number}.parquet", row_group_size=700)
    return folder


@pytest.fixture(scope="module")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunManifest]:
    output_dir = tmp_path_factory.mktemp("built")
    manifest, _ = build_serially(config_of(source, output_dir))
    return output_dir / "latest", manifest


def flat(folder: Path) -> pa.Table:
    """Every published measurement with its source, in order."""
    rows = [
        {"src_addr": record["src_addr"], **measurement}
        for record in records(folder)
        for measurement in record["measurements"]
    ]
    return pa.Table.from_pylist(
        rows, schema=measurements_schema().insert(0, pa.field("src_addr", pa.string()))
    )


def test_contents_are_those_of_the_source(source: Path, built: tuple[Path, RunManifest]) -> None:
    folder, manifest = built
    ours = flat(folder)
    assert ours.num_rows == manifest.ledger.rows_used == manifest.statistics["measurements"]
    wanted = f"""
        SELECT event_time, src_addr, dst_addr, CASE WHEN contains(dst_addr, ':') THEN 6 ELSE 4 END v, rtt
        FROM '{source}/*.parquet' WHERE rtt IS NOT NULL AND NOT isnan(rtt)
    """  # noqa: S608
    found = "SELECT event_time, src_addr, dst_addr, ip_version::INTEGER, rtt FROM ours"
    with duckdb.connect() as connection:
        connection.register("ours", ours)
        for left, right in ((wanted, found), (found, wanted)):
            rest = connection.execute(f"({left}) EXCEPT ALL ({right})").fetchall()
            assert rest == []
    assert manifest.ledger.rejected.keys() == {"nan_rtt", "null_rtt"}
    assert manifest.statistics["versions_filled"] > 0


@pytest.mark.parametrize("cut", [-100, -9, 4])
def test_a_source_that_cannot_be_compared_is_named(source: Path, tmp_path: Path, cut: int) -> None:
    folder = shutil.copytree(source, tmp_path / "in")
    config = config_of(folder, tmp_path / "out")
    identity = identify(config)
    path = folder / "m1.parquet"
    data = path.read_bytes()
    path.write_bytes(data[:cut] + bytes(8) + data[cut + 8 :] if cut > 0 else data[:cut])
    with pytest.raises(GristmillError) as caught:
        compare(config, identity, [], iter(()))
    assert caught.value.code == "proof"
    assert str(path) in caught.value.message and "gristmill-" not in caught.value.message


def test_every_record_is_as_the_format_says(built: tuple[Path, RunManifest]) -> None:
    folder, manifest = built
    for data in raw_records(folder):
        with pa.ipc.open_stream(data) as stream:
            assert stream.schema == record_schema()
            table = stream.read_all()
        table.validate(full=True)
        with pa.ipc.open_stream(table["measurements"][0].as_buffer()) as stream:
            assert stream.schema == measurements_schema()
            stream.read_all().validate(full=True)
    rows = records(folder)
    for record in rows:
        times = [measurement["event_time"] for measurement in record["measurements"]]
        assert times == sorted(times)
        assert record["n_measurements"] == len(times)
        assert (record["first_timestamp"], record["last_timestamp"]) == (times[0], times[-1])
        assert record["time_span_seconds"] == (times[-1] - times[0]).total_seconds()
        assert record["src_id"] == int(hashlib.md5(record["src_addr"].encode()).hexdigest()[:15], 16)  # noqa: S324
        assert (record["part"], record["n_parts"]) == (0, 1)
    assert len({record["src_addr"] for record in rows}) == len(rows) == manifest.statistics["probes"]


def test_ties_keep_input_order(source: Path, built: tuple[Path, RunManifest]) -> None:
    expected: dict[str, list[Any]] = {}
    for path in sorted(source.iterdir()):
        for entry in pq.read_table(path).to_pylist():
            if entry["rtt"] is not None and entry["rtt"] == entry["rtt"]:
                expected.setdefault(entry["src_addr"], []).append(entry)
    for record in records(built[0]):
        wanted = sorted(expected.pop(record["src_addr"]), key=lambda entry: entry["event_time"])
        found = [(m["event_time"], m["dst_addr"], m["rtt"]) for m in record["measurements"]]
        assert found == [(m["event_time"], m["dst_addr"], m["rtt"]) for m in wanted]
    assert not expected


def test_no_probe_is_in_both_splits(built: tuple[Path, RunManifest]) -> None:
    train, test = ({record["src_addr"] for record in records(built[0], split)} for split in ("train", "test"))
    assert train and test and not train & test
    assert 0.05 < len(test) / (len(train) + len(test)) < 0.16


def test_names_report_and_verdict(built: tuple[Path, RunManifest]) -> None:
    folder, manifest = built
    names = [output.path for output in manifest.outputs]
    assert [name for name in names if name.endswith(".arrayrecord")] == [
        "test-00000-of-00001.arrayrecord",
        "train-00000-of-00001.arrayrecord",
    ]
    report = json.loads((folder / "report.json").read_text())
    assert report == manifest.statistics
    both = report["probe_splits"]
    assert sum(split["measurements"] for split in both.values()) == manifest.ledger.rows_used
    for split in both.values():
        assert 0.02 < split["failed_share"] < 0.2
        assert split["ipv4_share"] + split["ipv6_share"] == pytest.approx(1)
        assert sum(split["measurements_per_probe"]["probes_up_to"].values()) == split["probes"]
        assert sum(split["measurement_bytes_per_record"]["records_up_to"].values()) == split["records"]
    verdict = validate_probes(folder, manifest, full=True)
    assert verdict.faults == ()
    assert verdict.counts["measurements"] == manifest.ledger.rows_used


@pytest.mark.parametrize("partitions", [1, 3, 8, 5_000])
def test_bytes_do_not_depend_on_partitions(
    source: Path, built: tuple[Path, RunManifest], tmp_path: Path, partitions: int
) -> None:
    build_serially(config_of(source, tmp_path, partitions=partitions, workers=partitions % 7 + 1))
    assert published_digests(tmp_path / "latest") == published_digests(built[0].resolve())


def test_bytes_do_not_depend_on_the_order_of_files_or_where_runs_are_spilled(
    source: Path, built: tuple[Path, RunManifest], tmp_path: Path
) -> None:
    paths = sorted(source.iterdir(), reverse=True)
    manifest, _ = build_serially(
        config_of([*paths, source], tmp_path / "out", spill_dir=str(tmp_path / "spill"))
    )
    assert manifest.run_hash == built[1].run_hash
    assert published_digests(tmp_path / "out" / "latest") == published_digests(built[0].resolve())
    assert list((tmp_path / "spill").rglob("*.spill"))
    _, again = build_serially(config_of(source, tmp_path / "out", spill_dir=str(tmp_path / "spill")))
    assert again.executed == []
    for path in (tmp_path / "spill").rglob("*.spill"):
        path.unlink()
    _, again = build_serially(config_of(source, tmp_path / "out", spill_dir=str(tmp_path / "spill")))
    assert [task for task, _ in again.executed] == ["scatter"]


def test_spilled_runs_are_found_by_their_recorded_paths(source: Path, tmp_path: Path) -> None:
    out, spill = tmp_path / "out", tmp_path / "spill"
    raw = config_of(source, out, spill_dir=str(spill))
    changed = config_of(source, out, compression="snappy")
    build_serially(raw)
    assert not any(path.is_symlink() for path in (out / "stages").rglob("*"))
    [record] = (out / "stages").rglob("*.elsewhere")
    [spilled] = spill.rglob("*.spill")
    whole = spilled.read_bytes()
    assert json.loads(record.read_text()) == {
        "path": str(spilled),
        "bytes": len(whole),
        "sha256": hashlib.sha256(whole).hexdigest(),
    }
    # Without its spill folder in the configuration, too.
    _, again = build_serially(changed)
    assert {task for task, _ in again.executed} == {"gather", "validate"}

    def executed(verify: Verify = Verify.SIZE, **changes: Any) -> set[str]:
        _, serial = build_serially(config_of(source, out, spill_dir=str(spill), **changes), verify=verify)
        return {task for task, _ in serial.executed} - {"validate"}

    # A bit of the first round trip.
    spilled.write_bytes(whole[:12] + bytes([whole[12] ^ 1]) + whole[13:])
    assert executed(compression_level=2) == {"gather"}
    assert executed(Verify.SHA256, compression_level=3) == {"scatter", "gather"}
    assert spilled.read_bytes() == whole
    record.write_bytes(record.read_bytes().replace(b'"bytes"', b'"bites"'))
    assert executed(compression_level=4) == {"scatter", "gather"}
    spill.rename(tmp_path / "moved")
    build_serially(config_of(source, out, compression_level=5))
    [made] = (out / "stages").rglob("*.spill")
    assert made.read_bytes() == whole and not record.exists()
    shutil.rmtree(made.parent / "receipts")
    assert executed(compression_level=6) == {"scatter", "gather"}
    assert record.exists() and not made.exists()


def test_a_link_in_the_spill_folder_is_not_followed(source: Path, tmp_path: Path) -> None:
    raw = config_of(source, tmp_path / "out", spill_dir=str(tmp_path / "spill"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "spill").mkdir()
    (tmp_path / "spill" / "stages").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError) as caught:
        build_serially(raw)
    assert (caught.value.code, caught.value.where) == ("foreign_output", str(tmp_path / "spill" / "stages"))
    assert not list((tmp_path / "elsewhere").iterdir())


def test_the_spill_folder_may_be_the_output_folder(source: Path, tmp_path: Path) -> None:
    build_serially(config_of(source, tmp_path, spill_dir=str(tmp_path)))
    _, again = build_serially(config_of(source, tmp_path, spill_dir=str(tmp_path)))
    assert again.executed == [] and not list(tmp_path.rglob("*.elsewhere"))


@pytest.mark.parametrize("spill_rows", [37, 1_000])
def test_bytes_do_not_depend_on_the_size_of_runs(
    source: Path,
    built: tuple[Path, RunManifest],
    tmp_path: Path,
    spill_rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tasks.probes import scatter

    monkeypatch.setattr(
        scatter, "read_row_batches", lambda pieces, _, reading: read_row_batches(pieces, spill_rows, reading)
    )
    build_serially(config_of(source, tmp_path))
    assert published_digests(tmp_path / "latest") == published_digests(built[0].resolve())


@pytest.mark.parametrize(
    "limit",
    [
        "gather._READ_ROWS",
        "runs.windows._WINDOW_RECORDS",
        "runs.write.BLOCK_ITEMS",
        "records.encode._TOGETHER_BYTES",
    ],
)
def test_bytes_do_not_depend_on_what_is_held_together(
    source: Path,
    built: tuple[Path, RunManifest],
    tmp_path: Path,
    limit: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"tasks.probes.{limit}", 1)
    build_serially(config_of(source, tmp_path, partitions=3))
    assert published_digests(tmp_path / "latest") == published_digests(built[0].resolve())


@pytest.mark.parametrize("damage", [b"", b"x" * 500, None])
def test_a_damaged_run_is_told_and_made_again(source: Path, tmp_path: Path, damage: bytes | None) -> None:
    build_serially(config_of(source, tmp_path))
    [spill] = (tmp_path / "stages").rglob("*.spill")
    whole = spill.read_bytes()
    spill.write_bytes(whole[:-8] if damage is None else damage)
    changed = config_of(source, tmp_path, compression="snappy")
    with pytest.raises(IntegrityError) as caught:
        build_serially(changed, verify=Verify.OFF)
    assert (caught.value.code, caught.value.where) == ("broken_spool", str(spill))
    _, serial = build_serially(changed)
    assert [task for task, _ in serial.executed] == ["scatter", "gather", "gather", "validate", "validate"]
    assert spill.read_bytes() == whole


def test_seed_and_ratio_change_the_split_and_the_split_only(source: Path, tmp_path: Path) -> None:
    def splits(**changes: Any) -> tuple[dict[str, bytes], dict[str, bytes]]:
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        build_serially(config_of(source, out, **changes))
        train, test = (
            {hashlib.sha256(data).hexdigest(): data for data in raw_records(out / "latest", split)}
            for split in ("train", "test")
        )
        return train, test

    train, test = splits()
    other_train, other_test = splits(seed=7)
    assert train.keys() | test.keys() == other_train.keys() | other_test.keys()
    assert test.keys() != other_test.keys()
    half_train, half_test = splits(train_ratio=0.5)
    assert half_train.keys() < train.keys() and test.keys() < half_test.keys()
    assert 0.35 < len(half_train) / (len(half_train) + len(half_test)) < 0.65
    everything, nothing = splits(train_ratio=1.0)
    assert everything.keys() == train.keys() | test.keys() and not nothing


def test_sorted_split_is_the_first_addresses_in_text_order(source: Path, tmp_path: Path) -> None:
    manifest, _ = build_serially(config_of(source, tmp_path, split="sorted"))
    train, test = (
        {record["src_addr"] for record in records(tmp_path / "latest", split)} for split in ("train", "test")
    )
    addresses = sorted(train | test)
    assert train == set(addresses[: int(0.9 * len(addresses))])
    assert validate_probes(tmp_path / "latest", manifest, full=True).faults == ()


def test_a_large_probe_is_split_evenly(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    count = 50_000
    dst = [f"2001:db8::{value:x}" for value in rng.integers(0, 60_000, count)]
    table = pa.table(
        {
            "event_time": pa.array(rng.integers(0, 10**12, count)).cast(pa.timestamp("us")),
            "src_addr": ["2001:db8::1"] * count,
            "dst_addr": dst,
            "ip_version": pa.array([6] * count, pa.int8()),
            "rtt": pa.array(rng.random(count), pa.float32()),
        }
    )
    pq.write_table(table, tmp_path / "big.parquet")
    limit = 100_000
    manifest, _ = build_serially(
        config_of(tmp_path / "big.parquet", tmp_path / "out", max_record_bytes=limit)
    )
    rows = records(tmp_path / "out" / "latest")
    sizes = [len(record["blob"]) for record in rows]
    assert max(sizes) <= limit and min(sizes) > 0.98 * max(sizes)
    assert len(rows) == -(-sum(sizes) // limit)
    assert [(record["part"], record["n_parts"]) for record in rows] == [
        (i, len(rows)) for i in range(len(rows))
    ]
    times = [m["event_time"] for record in rows for m in record["measurements"]]
    assert times == sorted(times) and len(times) == count
    assert manifest.statistics["probes"] == 1
    assert validate_probes(tmp_path / "out" / "latest", manifest, full=True).faults == ()


def test_deduplicate_keeps_one_of_equal_measurements(tmp_path: Path) -> None:
    rows = [row(), row(), row(rtt=3.0), row(dst_addr="198.51.100.8"), row(), row(src_addr="192.0.2.9")]
    write_rows(tmp_path / "a.parquet", rows)
    write_rows(tmp_path / "b.parquet", rows[::-1])
    ratio = {"train_ratio": 1.0}
    manifest, _ = build_serially(config_of(str(tmp_path / "*.parquet"), tmp_path / "all", **ratio))
    assert manifest.ledger.rows_used == 12
    manifest, _ = build_serially(
        config_of(str(tmp_path / "*.parquet"), tmp_path / "one", deduplicate=True, **ratio)
    )
    assert (manifest.ledger.rows_used, manifest.ledger.duplicates) == (4, 8)
    kept = {record["src_addr"]: record["measurements"] for record in records(tmp_path / "one" / "latest")}
    assert [(m["dst_addr"], m["rtt"]) for m in kept["192.0.2.1"]] == [
        ("198.51.100.7", 12.5), ("198.51.100.7", 3.0), ("198.51.100.8", 12.5)
    ]  # fmt: skip
    assert validate_probes(tmp_path / "one" / "latest", manifest, full=True).faults == ()


def test_only_what_a_change_touches_is_made_again(source: Path, tmp_path: Path) -> None:
    build_serially(config_of(source, tmp_path))
    for changes, wanted in (
        ({}, []),
        ({"compression": "snappy"}, ["gather", "gather", "validate", "validate"]),
        # The same bytes again need not be validated again.
        ({"max_record_bytes": 1 << 20}, ["gather", "gather"]),
        ({"seed": 1}, ["scatter", "gather", "gather", "validate", "validate"]),
        ({"partitions": 9, "workers": 3, "max_reject_fraction": 0.5}, []),
    ):
        _, serial = build_serially(config_of(source, tmp_path, **changes))
        assert [task for task, _ in serial.executed] == wanted


def test_five_lines_read_a_record(built: tuple[Path, RunManifest]) -> None:
    from array_record.python.array_record_module import ArrayRecordReader

    reader = ArrayRecordReader(str(built[0] / "train-00000-of-00001.arrayrecord"))
    row = pa.ipc.open_stream(reader.read([0])[0]).read_all().to_pylist()[0]
    measurements = pa.ipc.open_stream(row["measurements"]).read_all()
    assert measurements.num_rows == row["n_measurements"]
    assert measurements.column_names == ["event_time", "dst_addr", "ip_version", "rtt"]
    reader.close()


def test_grain_reads_what_was_written(built: tuple[Path, RunManifest]) -> None:
    if importlib.util.find_spec("grain") is None:
        pytest.skip("grain is not installed")
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    with ArrayRecordDataSource(str(built[0] / "train-00000-of-00001.arrayrecord")) as source:
        assert list(source.__getitems__([0, 1])) == raw_records(built[0], "train")[:2]


@pytest.mark.skipif(not ATLAS.is_dir(), reason="the real measurements are not here")
def test_real_measurements(tmp_path: Path) -> None:
    manifest, _ = build_serially(config_of(ATLAS, tmp_path))
    assert manifest.ledger.rows_in == manifest.ledger.rows_used == 4_003
    verdict = validate_probes(tmp_path / "latest", manifest, full=True)
    assert verdict.faults == ()
    assert verdict.counts["probes"] == 567
    shards = sorted((tmp_path / "latest").glob("*.arrayrecord"))
    assert validate_records(shards, "folder", str(tmp_path)).faults == ()


def test_without_the_extra_nothing_is_started(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrayrecord_writer, "_MODULE", "array_record_is_not_here")
    with pytest.raises(MissingExtraError) as caught:
        build_serially(config_of(source, tmp_path / "out"))
    assert "pip install 'gristmill[probes]'" in caught.value.message
    assert {path.name for path in (tmp_path / "out" / "stages").iterdir()} <= {"fingerprints.json"}


def test_an_input_folder_that_holds_the_output_is_refused(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.parquet", [row(), row(rtt=None)])
    config = config_of(tmp_path, tmp_path / "out", max_reject_fraction=1.0, train_ratio=1.0)
    build_serially(config)
    with pytest.raises(ConfigError) as caught:
        identify(config)
    assert caught.value.code == "input_is_output"


def test_files_of_one_name_from_two_folders(tmp_path: Path) -> None:
    write_rows(tmp_path / "x" / "a.parquet", [row(rtt=float("nan")), row()])
    write_rows(tmp_path / "y" / "a.parquet", [row(), row(), row(rtt=None)])
    paths = [tmp_path / "x" / "a.parquet", tmp_path / "y" / "a.parquet"]
    manifest, _ = build_serially(config_of(paths, tmp_path / "out", max_reject_fraction=1.0, train_ratio=1.0))
    assert manifest.ledger.rows_used == 3
    listed = pq.read_table(tmp_path / "out" / "latest" / "rejects").to_pylist()
    assert {(entry["source_file"], entry["reason"]) for entry in listed} in (
        {("a.parquet", "nan_rtt"), ("a.parquet#2", "null_rtt")},
        {("a.parquet#2", "nan_rtt"), ("a.parquet", "null_rtt")},
    )
    assert validate_probes(tmp_path / "out" / "latest", manifest, full=True).faults == ()


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"train_ratio": 0}, "train_ratio"),
        ({"split": "random"}, "split"),
        ({"max_record_bytes": 10}, "max_record_bytes"),
        ({"compression": "snappy", "compression_level": 5}, ""),
        ({"partition": 5}, "partition"),
    ],
)
def test_bad_configurations(tmp_path: Path, change: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BuildProbeRowsConfig.parse({"input": "x", "output_dir": str(tmp_path), **change})
    assert caught.value.where == where


def test_every_field_explains_itself() -> None:
    for name, field in BuildProbeRowsConfig.model_fields.items():
        assert field.title and field.description, name


def test_an_input_that_changes_under_the_run_is_not_published(tmp_path: Path) -> None:
    from flows.build_probe_rows import mill

    path = write_rows(tmp_path / "a.parquet", [row()])
    config = config_of(path, tmp_path / "out", train_ratio=1.0)
    identity = identify(config)
    _, serial = build_serially(config)
    write_rows(path, [row(), row()])
    with pytest.raises(InputError) as caught:
        mill(config, identity, serial.each, serial.once)
    assert caught.value.code == "input_changed"


def test_an_input_that_changes_under_the_run_leaves_no_receipt_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_rows(tmp_path / "a.parquet", [row(rtt=float(i)) for i in range(20)])
    original, stat = path.read_bytes(), path.stat()
    config = config_of(path, tmp_path / "out", train_ratio=1.0)

    def changed_first(config: Any, identity: Any) -> Any:
        found = take_inventory(config, identity)
        write_rows(path, [row(rtt=float(100 + i)) for i in range(20)])
        return found

    with monkeypatch.context() as patch:
        patch.setattr("flows.build_probe_rows.take_inventory", changed_first)
        with pytest.raises(InputError) as caught:
            build_serially(config)
    assert (caught.value.code, caught.value.where) == ("input_changed", str(path))
    assert not list((tmp_path / "out" / "stages").glob("*/receipts/*.json"))
    path.write_bytes(original)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    build_serially(config)
    [record] = records(tmp_path / "out" / "latest")
    assert [m["rtt"] for m in record["measurements"]] == [float(i) for i in range(20)]
