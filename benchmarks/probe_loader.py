"""The probe loader against the same loader with a per-measurement Python encoder; padding by packing.

Both loaders read, draw and lay out alike: what differs is how drawn measurements become tokens. Two sets: short
probes (26 measurements on average, as 500k of 18.9k probes) and long ones (500, as 10M of 20k probes).
"""

from __future__ import annotations

import argparse
import datetime
import ipaddress
import math
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.common import report
from schemas.probes import measurements_schema, record_schema
from tasks.probes.training.crops import Contexts
from tasks.probes.training.loader import build_probe_dataset
from tasks.probes.training.sampler import ProbeRowSampler, Stream

ROUNDS = 3
SECONDS = 4.0
# name: probes, mean measurements, sigma of the lognormal.
SETS = {"short probes": (18_900, 26.5, 1.3), "long probes": (4_000, 500.0, 1.5)}
ANCHORS = 800
EPOCH = datetime.datetime(1970, 1, 1)


class PythonSampler(ProbeRowSampler):
    """The same draws, tokenized measurement by measurement."""

    def sample(self, rows: Sequence[Mapping[str, Any]], streams: Sequence[Stream]) -> Contexts:
        rows = list(rows)
        drawn = self.draw(np.array([len(row["measurements"]) for row in rows]), streams)
        tokens: list[int] = []
        offsets = [0]
        shuffle = random.Random(0).shuffle
        for row, start, stop in zip(
            drawn.rows.tolist(),
            drawn.context_offsets.tolist(),
            drawn.context_offsets[1:].tolist(),
            strict=False,
        ):
            batch = rows[row]["measurements"].take(pa.array(drawn.positions[start:stop]))
            before = None
            for measurement, timed in zip(batch.to_pylist(), drawn.timed[start:stop].tolist(), strict=True):
                seconds = math.floor((measurement["event_time"] - EPOCH).total_seconds()) if timed else None
                tokens += encode_measurement(rows[row]["src_addr"], measurement, seconds, before, shuffle)
                before = before if seconds is None else seconds
            offsets.append(len(tokens))
        return Contexts(np.array(tokens, np.int32), np.array(offsets), drawn.modes)


def encode_measurement(
    src_addr: str, measurement: dict[str, Any], seconds: int | None, before: int | None, shuffle: Any
) -> list[int]:
    blocks = [
        encode_address(src_addr, 1),
        encode_address(measurement["dst_addr"], 3),
        encode_rtt(measurement["rtt"]),
    ]
    if seconds is not None:
        blocks.append(encode_time(seconds, before))
    shuffle(blocks)
    return [0, *(token for block in blocks for token in block)]


def encode_address(text: str, head: int) -> list[int]:
    address = ipaddress.ip_address(text)
    return [head + (address.version == 6), *(11 + byte for byte in address.packed)]


def encode_rtt(rtt_ms: float) -> list[int]:
    if rtt_ms < 0:
        return [10]
    microseconds = max(1.0, rtt_ms * 1000 * (1 + 2**-23))
    exponent = max(0, math.frexp(microseconds)[1] - 11)
    code = exponent << 11 | int(microseconds / 2**exponent)
    return [8, *(11 + byte for byte in code.to_bytes(2, "big"))]


def encode_time(seconds: int, before: int | None) -> list[int]:
    if before is None:
        return [5, *(11 + byte for byte in seconds.to_bytes(8, "big", signed=True))]
    delta = max(0, seconds - before)
    if delta < 256:
        return [6, 11 + delta]
    return [7, *(11 + byte for byte in delta.to_bytes(4, "big"))]


def stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def records(num_probes: int, mean: float, sigma: float) -> Iterator[bytes]:
    """Probes with lognormal numbers of measurements over a month, 42% of them IPv6, 3% failed."""
    rng = np.random.default_rng(0)
    anchors = [
        pa.array([f"10.{i >> 8}.{i & 255}.7" for i in range(ANCHORS)]),
        pa.array([f"2001:db8::{i:x}" for i in range(ANCHORS)]),
    ]
    for probe in range(num_probes):
        size = max(1, int(rng.lognormal(math.log(mean) - sigma**2 / 2, sigma)))
        six = int(rng.random() < 0.42)
        times = np.sort(rng.integers(0, 30 * 86_400 * 10**6, size)) + 1_599_523_200 * 10**6
        rtt = np.where(rng.random(size) < 0.03, -1, rng.lognormal(3, 1, size)).astype(np.float32)
        columns = [
            pa.array(times, pa.timestamp("us")),
            anchors[six].take(pa.array(rng.integers(0, ANCHORS, size))),
            pa.array(np.full(size, 6 if six else 4, np.int8)),
            pa.array(rtt),
        ]
        first, last = columns[0][0], columns[0][size - 1]
        row = {
            "src_id": probe,
            "measurements": stream(pa.record_batch(columns, schema=measurements_schema())),
            "n_measurements": size,
            "time_span_seconds": (last.value - first.value) / 1e6,
            "first_timestamp": first,
            "last_timestamp": last,
            "src_addr": f"2001:db8:1::{probe:x}" if six else f"11.0.{probe >> 8}.{probe & 255}",
            "part": 0,
            "n_parts": 1,
        }
        yield stream(pa.RecordBatch.from_pylist([row], schema=record_schema()))


def write(path: Path, num_probes: int, mean: float, sigma: float) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:1,zstd:1")
    for record in records(num_probes, mean, sigma):
        writer.write(record)
    writer.close()


def rate(path: Path, sampler: ProbeRowSampler) -> float:
    """Tokens a second, padding not counted, after the first batch."""
    dataset = build_probe_dataset(path, batch_size=8, seed=0, num_epochs=None, sampler=sampler)
    batches = iter(dataset)
    next(batches)
    num_tokens = 0
    start = time.perf_counter()
    while (took := time.perf_counter() - start) < SECONDS:
        num_tokens += int(np.count_nonzero(next(batches)["inputs_segmentation"]))
    batches.close()
    return num_tokens / took


def padding(path: Path, **how: Any) -> float:
    """Share of the positions of an epoch that are padding."""
    dataset = build_probe_dataset(path, batch_size=8, seed=0, drop_remainder=False, **how)
    used = total = 0
    for batch in dataset:
        used += int(np.count_nonzero(batch["inputs_segmentation"]))
        total += batch["inputs_segmentation"].size
    return 1 - used / total


def compare(name: str, path: Path) -> None:
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(ROUNDS):
        ours.append(rate(path, ProbeRowSampler()))
        theirs.append(rate(path, PythonSampler()))
    report(f"{name}: loader", f"{statistics.median(ours) / 1e6:.2f} Mtok/s")
    report(f"{name}: Python encoder", f"{statistics.median(theirs) / 1e6:.2f} Mtok/s")
    times = statistics.median(fast / slow for fast, slow in zip(ours, theirs, strict=True))
    report(f"{name}: times faster", f"{times:.1f}x", ">= 8x", times >= 8)
    single = padding(path, pack=False)
    report(f"{name}: padding, one context a crop", f"{100 * single:.1f}%")
    for rows, limit in ((64, 0.03), (256, 0.01)):
        share = padding(path, group_rows=rows)
        report(f"{name}: padding, groups of {rows}", f"{100 * share:.2f}%", f"<= {limit:.0%}", share <= limit)


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, size in SETS.items():
            path = Path(folder) / f"{name.replace(' ', '-')}.arrayrecord"
            write(path, *size)
            compare(name, path)


if __name__ == "__main__":
    main()
