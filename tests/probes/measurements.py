"""Measurement sets for tests, and build-probe-rows without a Prefect server."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from array_record.python.array_record_module import ArrayRecordReader
from support import Serial, mill_of

from schemas.probes import BuildProbeRowsConfig
from schemas.run import RunManifest
from tasks.run.receipts import Verify

ATLAS = Path(__file__).resolve().parents[3] / "shared" / "data" / "atlas"
SCHEMA = pa.schema(
    [
        ("event_time", pa.timestamp("us")),
        ("src_addr", pa.string()),
        ("dst_addr", pa.string()),
        ("ip_version", pa.int8()),
        ("rtt", pa.float32()),
    ]
)
START = datetime.datetime(2020, 9, 8)


def row(**changes: Any) -> dict[str, Any]:
    """A good measurement; `changes` replace its columns."""
    good = {
        "event_time": START,
        "src_addr": "192.0.2.1",
        "dst_addr": "198.51.100.7",
        "ip_version": 4,
        "rtt": 12.5,
    }
    return {**good, **changes}


def write_rows(
    path: Path, rows: Iterable[dict[str, Any]], schema: pa.Schema = SCHEMA, group: int = 64
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), path, row_group_size=group)
    return path


def random_table(rng: np.random.Generator, rows: int, probes: int) -> pa.Table:
    """Heavy-tailed measurements, mostly in time order, with ties, failures, both versions and a few faults."""
    owner = np.minimum((rng.pareto(1.0, rows) * 3).astype(np.int64), probes - 1)
    six = owner % 5 < 2
    src = (
        np.where(six, "2001:db8::", "10.0.0.").astype(object)
        + (owner % 250).astype(str)
        + np.where(six, ":1", "")
    )
    target = rng.integers(0, 40, rows).astype(str)
    dst = np.where(six, "2001:db8:1::", "198.51.100.").astype(object) + target
    times = np.sort(rng.integers(1_599_523_200, 1_599_523_200 + rows // 4 + 1, rows)) * 10**6
    swap = rng.random(rows) < 0.05
    times[swap] = rng.permutation(times[swap])
    rtt = rng.lognormal(3, 1, rows)
    rtt[rng.random(rows) < 0.1] = -1
    rtt[rng.random(rows) < 0.005] = np.nan
    versions = pa.array(np.where(six, 6, 4).astype(np.int8), mask=rng.random(rows) < 0.01)
    columns = [pa.array(times).cast(pa.timestamp("us")), src.tolist(), dst.tolist(), versions]
    rtts = pa.array(rtt.astype(np.float32), mask=rng.random(rows) < 0.005)
    return pa.table([*columns, rtts], schema=SCHEMA)


def config_of(source: Any, output_dir: Path, **changes: Any) -> BuildProbeRowsConfig:
    given = [str(path) for path in source] if isinstance(source, list) else str(source)
    return BuildProbeRowsConfig.parse({"input": given, "output_dir": str(output_dir), **changes})


def build_serially(config: BuildProbeRowsConfig, verify: Verify = Verify.SIZE) -> tuple[RunManifest, Serial]:
    """Run build-probe-rows's story without a Prefect server; the steps, receipts and files are the real ones."""
    return mill_of("build-probe-rows", config, verify)


def raw_records(folder: Path, split: str = "*") -> list[bytes]:
    """The bytes of every published record, in order."""
    found: list[bytes] = []
    for path in sorted(folder.glob(f"{split}-*.arrayrecord"), reverse=True):
        found += ArrayRecordReader(str(path)).read_all()
    return found


def records(folder: Path, split: str = "*") -> list[dict[str, Any]]:
    """Every published record as Python objects, `measurements` as a list of rows."""
    rows = []
    for data in raw_records(folder, split):
        with pa.ipc.open_stream(data) as outer:
            [record] = outer.read_all().to_pylist()
        with pa.ipc.open_stream(record["measurements"]) as inner:
            rows.append(
                {**record, "blob": record["measurements"], "measurements": inner.read_all().to_pylist()}
            )
    return rows
