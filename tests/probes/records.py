"""Probe records made with plain pyarrow and array_record alone, without the code that build-probe-rows uses."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from schemas.probes import measurements_schema, record_schema

START_S = 1_599_523_200
ANCHORS = 50


def stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def measurements(rows: Sequence[tuple[int, str, float]]) -> pa.RecordBatch:
    """A batch of (microseconds since 1970, destination, rtt ms)."""
    times, destinations, rtts = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    return pa.record_batch(
        [
            pa.array(times, pa.timestamp("us")),
            pa.array(destinations, pa.string()),
            pa.array([6 if ":" in address else 4 for address in destinations], pa.int8()),
            pa.array(rtts, pa.float32()),
        ],
        schema=measurements_schema(),
    )


def record(src_addr: str, batch: pa.RecordBatch, part: int = 0, n_parts: int = 1) -> bytes:
    times = batch["event_time"]
    first, last = times[0], times[len(times) - 1]
    row = {
        "src_id": int(hashlib.md5(src_addr.encode(), usedforsecurity=False).hexdigest()[:15], 16),
        "measurements": stream(batch),
        "n_measurements": len(batch),
        "time_span_seconds": (last.value - first.value) / 1e6,
        "first_timestamp": first,
        "last_timestamp": last,
        "src_addr": src_addr,
        "part": part,
        "n_parts": n_parts,
    }
    return stream(pa.RecordBatch.from_pylist([row], schema=record_schema()))


def write_records(path: Path, records: Iterable[bytes]) -> Path:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:1,zstd:1")
    for one in records:
        writer.write(one)
    writer.close()
    return path


def src_addr(number: int, ipv6: bool) -> str:
    return f"2001:db8:1::{number:x}" if ipv6 else f"11.{number >> 16}.{number >> 8 & 255}.{number & 255}"


def random_batch(rng: np.random.Generator, size: int, ipv6: bool = False) -> pa.RecordBatch:
    """A month of measurements of a few anchors, every 30th failed."""
    times = np.sort(rng.integers(0, 30 * 86_400 * 10**6, size)) + START_S * 10**6
    rtts = rng.lognormal(3, 1, size).astype(np.float32)
    rtts[rng.random(size) < 1 / 30] = -1
    anchors = pa.array([f"2001:db8::{i:x}" if ipv6 else f"10.0.{i}.7" for i in range(ANCHORS)])
    return pa.record_batch(
        [
            pa.array(times, pa.timestamp("us")),
            anchors.take(pa.array(rng.integers(0, ANCHORS, size))),
            pa.array(np.full(size, 6 if ipv6 else 4, np.int8)),
            pa.array(rtts),
        ],
        schema=measurements_schema(),
    )


def random_rows(seed: int, num_rows: int, mean: float = 26.5, sigma: float = 1.3) -> list[dict[str, Any]]:
    """Rows as the data source gives them, of heavy-tailed sizes, 42% of them IPv6; and of distinct sources."""
    rng = np.random.default_rng(seed)
    sizes = np.maximum(1, rng.lognormal(np.log(mean) - sigma**2 / 2, sigma, num_rows)).astype(int)
    ipv6 = rng.random(num_rows) < 0.42
    return [
        {"src_addr": src_addr(number, six), "measurements": random_batch(rng, size, six)}
        for number, (size, six) in enumerate(zip(sizes.tolist(), ipv6.tolist(), strict=True))
    ]


def write_shards(folder: Path, seed: int, num_rows: int, num_shards: int = 3, **sizes: float) -> list[Path]:
    """Random rows in `train-XXXXX-of-YYYYY.arrayrecord` files."""
    folder.mkdir(parents=True, exist_ok=True)
    records = [record(row["src_addr"], row["measurements"]) for row in random_rows(seed, num_rows, **sizes)]
    cuts = np.linspace(0, num_rows, num_shards + 1).astype(int).tolist()
    return [
        write_records(folder / f"train-{i:05d}-of-{num_shards:05d}.arrayrecord", records[low:high])
        for i, (low, high) in enumerate(pairwise(cuts))
    ]
