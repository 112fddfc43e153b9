"""A whole build-probe-rows run: against the approach it replaces, and against sorting alone.

    python -m benchmarks.probes            # about ten minutes, 2 cores, 12 GB of memory, 6 GB of disk
    python -m benchmarks.probes --small    # a tenth of the rows

The sets are synthetic and heavy-tailed: the busiest probe of 10 million measurements has more than one record of
8 MiB holds; 42% of the probes are IPv6, 8% of the measurements failed, a few are NaN or null. The contenders run in
turn, each in a process of its own, over a warm page cache:

- ours: all steps of the flow with receipts, checksums, fsync and publishing, on two threads and in the processes they
  start; without Prefect's start-up and without hashing the inputs for the run's identity. `spread` runs the steps in
  two worker processes instead, whose start counts;
- known: `LIST(STRUCT_PACK(…) ORDER BY event_time) … GROUP BY src_addr` to Parquet by DuckDB, then two worker
  processes that make Python objects of the lists, records of those with `from_pylist`, and files of their own, then a
  merge into train and test;
- sort: DuckDB's `ORDER BY hash(src_addr), event_time`, every batch fetched and dropped, then writing as many bytes as
  ours publishes.

Memory is the resident memory of the process and all its children, mapped files and shared pages of each included.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import report, save_receipt, seconds_ratio

WORKERS, ROUNDS = 2, 1
GROUP_ROWS, FILES = 1_000_000, 4
TARGETS = 3_000
START_US, PER_SECOND = 1_599_523_200_000_000, 50
LIMIT = 8 << 20
MIN_SPEEDUP = {10_000_000: 10.0, 500_000: 5.0}
MIN_OF_SORT, MIN_MEMORY, MAX_GROWTH = 0.8, 6.0, 1.25


class Run(NamedTuple):
    """What one contender took; `stored` is what it published."""

    seconds: float
    megabytes: float
    stored: int


def make_set(folder: Path, rows: int, probes: int) -> None:
    """Write `rows` measurements of at most `probes` probes as four Parquet files."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(rows)
    weights = 1 / np.arange(1, probes + 1) ** 0.9
    ends = np.cumsum(weights) / weights.sum()
    six = rng.random(probes) < 0.42
    sources = pa.array(
        [
            f"2001:db8:{i >> 16:x}:{i & 65535:x}::1" if is_six else f"10.{i >> 16}.{(i >> 8) & 255}.{i & 255}"
            for i, is_six in enumerate(six.tolist())
        ]
    )
    four_targets = [f"198.{18 + i % 2}.{i >> 8}.{i & 255}" for i in range(TARGETS)]
    targets = pa.array(four_targets + [f"2001:500:{i:x}::{i * 7:x}" for i in range(TARGETS)])
    for number in range(FILES):
        count = rows // FILES
        owners = np.searchsorted(ends, rng.random(count))
        span = count * 10**6 // PER_SECOND
        times = START_US + number * span + np.sort(rng.integers(0, span, count))
        rtts = rng.lognormal(3.5, 1, count).astype(np.float32)
        rtts[rng.random(count) < 0.08] = -1
        rtts[rng.random(count) < 0.002] = np.nan
        versions = np.where(six[owners], 6, 4).astype(np.int8)
        table = pa.table(
            {
                "event_time": pa.array(times).cast(pa.timestamp("us")),
                "src_addr": sources.take(pa.array(owners)),
                "dst_addr": targets.take(pa.array(rng.integers(0, TARGETS, count) + TARGETS * six[owners])),
                "ip_version": pa.array(versions, mask=rng.random(count) < 0.001),
                "rtt": pa.array(rtts, mask=rng.random(count) < 0.002),
            }
        )
        path = folder / f"part-{number}.parquet"
        pq.write_table(table, path, row_group_size=GROUP_ROWS, compression="zstd")


def run_ours(source: Path, out: Path) -> int:
    with ThreadPoolExecutor(WORKERS) as pool:
        return _run_flow(source, out, pool)


def run_spread(source: Path, out: Path) -> int:
    with ProcessPoolExecutor(WORKERS, multiprocessing.get_context("spawn")) as pool:
        return _run_flow(source, out, pool)


def _run_flow(source: Path, out: Path, pool: Executor) -> int:
    from tasks.runtime.settings import quiet_environment

    quiet_environment()
    from flows.build_probe_rows import mill
    from schemas.probes import BuildProbeRowsConfig
    from tasks.probes.identity import identify

    config = BuildProbeRowsConfig.parse({"input": str(source), "output_dir": str(out), "workers": WORKERS})
    identity = identify(config)
    _start_clock()

    def each(step: Any, jobs: Sequence[Any]) -> list[Any]:
        receipts = list(pool.map(_KERNELS[step.name], jobs))
        for receipt in receipts:
            save_receipt(out, receipt)
        return receipts

    manifest = mill(config, identity, each, lambda step, job: step.fn(job))
    return sum(record.bytes for record in manifest.outputs)


def _scatter(job: Any) -> Any:
    from tasks.probes.scatter import scatter_rows

    return scatter_rows(job)


def _merge(job: Any) -> Any:
    from tasks.probes.merge import merge_runs

    return merge_runs(job)


def _gather(job: Any) -> Any:
    from tasks.probes.gather import gather_shard

    return gather_shard(job)


_KERNELS: dict[str, Callable[[Any], Any]] = {"scatter": _scatter, "merge": _merge, "gather": _gather}


def run_known(source: Path, out: Path) -> int:
    import duckdb

    out.mkdir()
    _start_clock()
    grouped = out / "grouped.parquet"
    with duckdb.connect() as connection:
        connection.execute(f"SET threads = {WORKERS}")
        connection.execute(f"""
            COPY (
                SELECT src_addr, list(struct_pack(event_time, dst_addr, ip_version, rtt) ORDER BY event_time) AS m
                FROM '{source}/*.parquet' GROUP BY src_addr ORDER BY src_addr
            ) TO '{grouped}' (ROW_GROUP_SIZE 2048)
        """)  # noqa: S608
    groups = range(pq.read_metadata(grouped).num_row_groups)
    shares = [(grouped, list(groups[worker::WORKERS]), out / f"worker-{worker}") for worker in range(WORKERS)]
    with ProcessPoolExecutor(WORKERS, multiprocessing.get_context("spawn")) as pool:
        probes = sum(pool.map(_known_worker, shares))
    return _known_merge(out, probes)


def _known_worker(share: tuple[Path, list[int], Path]) -> int:
    from array_record.python.array_record_module import ArrayRecordWriter

    from tasks.probes.rows.addresses import src_id

    path, groups, target = share
    writer = ArrayRecordWriter(str(target), "group_size:1")
    probes = 0
    with pq.ParquetFile(path) as file:
        for group in groups:
            for row in file.read_row_group(group).to_pylist():
                probes += 1
                for part in _known_parts(row["m"]):
                    writer.write(_known_record(src_id(row["src_addr"]), part))
    writer.close()
    return probes


def _known_parts(measurements: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    most = LIMIT // 40
    yield from (measurements[first : first + most] for first in range(0, len(measurements), most))


def _known_record(identifier: int, measurements: list[dict[str, Any]]) -> bytes:
    from schemas.probes import measurements_schema, record_schema

    first, last = measurements[0]["event_time"], measurements[-1]["event_time"]
    fields = list(record_schema())[:6]
    row = {
        "src_id": identifier,
        "measurements": _ipc(pa.RecordBatch.from_pylist(measurements, schema=measurements_schema())),
        "n_measurements": len(measurements),
        "time_span_seconds": (last - first).total_seconds(),
        "first_timestamp": first,
        "last_timestamp": last,
    }
    return _ipc(pa.RecordBatch.from_pylist([row], schema=pa.schema(fields)))


def _ipc(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _known_merge(out: Path, probes: int) -> int:
    from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

    readers = [ArrayRecordReader(str(out / f"worker-{worker}")) for worker in range(WORKERS)]
    targets = [out / "train.arrayrecord", out / "test.arrayrecord"]
    train, test = (ArrayRecordWriter(str(path), "group_size:1") for path in targets)
    for number, record in enumerate(chain.from_iterable(_read(reader) for reader in readers)):
        (train if number < 0.9 * probes else test).write(record)
    train.close()
    test.close()
    return sum(path.stat().st_size for path in targets)


def _read(reader: Any) -> Iterator[bytes]:
    for first in range(0, reader.num_records(), 64):
        yield from reader.read(first, min(first + 64, reader.num_records()))


def run_sort(source: Path, out: Path) -> int:
    import duckdb

    size = int((out.parent / "stored").read_text())
    _start_clock()
    with duckdb.connect() as connection:
        connection.execute(f"SET threads = {WORKERS}")
        connection.execute(f"SET temp_directory = '{out}.spill'")
        reader = connection.sql(
            f"SELECT * FROM '{source}/*.parquet' ORDER BY hash(src_addr), event_time"  # noqa: S608
        ).to_arrow_reader(100_000)
        for _ in reader:
            pass
    out.mkdir()
    block = os.urandom(1 << 20)
    with (out / "bytes").open("wb") as file:
        for _ in range(size >> 20):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return size


CONTENDERS: dict[str, Callable[[Path, Path], int]] = {
    "ours": run_ours,
    "spread": run_spread,
    "known": run_known,
    "sort": run_sort,
}
_clock = 0.0


def _start_clock() -> None:
    global _clock
    _clock = time.perf_counter()


def _timed(name: str, source: Path, out: Path) -> tuple[float, int]:
    stored = CONTENDERS[name](source, out)
    return time.perf_counter() - _clock, stored


class TreeMemory:
    """The largest resident memory this process's children and theirs had together, in MB, sampled every 20 ms."""

    def __init__(self) -> None:
        self.megabytes = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        import psutil

        here = psutil.Process()
        while not self._stop.wait(0.02):
            total = 0
            for child in here.children(recursive=True):
                try:
                    total += child.memory_info().rss
                except psutil.Error:
                    continue
            self.megabytes = max(self.megabytes, total / 2**20)

    def __enter__(self) -> TreeMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class Arena:
    """Runs contenders and keeps what they took, by set and name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.runs: dict[tuple[int, str], list[Run]] = {}

    def rounds(self, rows: int, probes: int, names: Sequence[str], rounds: int = ROUNDS) -> None:
        """Let the contenders run in turn, so that a slow moment of the machine meets all of them."""
        source = self._folder / f"rows-{rows}"
        if not source.exists():
            make_set(source, rows, probes)
        for _ in range(rounds):
            for name in names:
                self._run(rows, name, source)

    def _run(self, rows: int, name: str, source: Path) -> None:
        out = self._folder / "out"
        # What the one before wrote must not be written back during this run.
        os.sync()
        with TreeMemory() as memory, ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            seconds, stored = pool.submit(_timed, name, source, out).result()
        if name == "ours":
            (self._folder / "stored").write_text(str(stored))
        self.runs.setdefault((rows, name), []).append(Run(seconds, memory.megabytes, stored))
        shutil.rmtree(out)

    def seconds(self, rows: int) -> dict[str, list[float]]:
        return {name: [run.seconds for run in runs] for (of, name), runs in self.runs.items() if of == rows}

    def megabytes(self, rows: int, name: str) -> float:
        return statistics.median(run.megabytes for run in self.runs[rows, name])


def report_set(arena: Arena, rows: int, full_rows: int) -> None:
    times = arena.seconds(rows)
    for name in times:
        stored = arena.runs[rows, name][0].stored
        megabytes = f"{arena.megabytes(rows, name):.0f} MB"
        report(
            f"{rows:,}: {name} ({stored / 1e6:.0f} MB stored)",
            f"{statistics.median(times[name]):.2f} s",
            megabytes,
        )
    least = MIN_SPEEDUP[full_rows]
    for name in ("ours", "spread"):
        faster, speed = seconds_ratio(times, "known", name), seconds_ratio(times, "sort", name)
        report(f"{rows:,}: known / {name}", f"{faster:.1f}x", f">= {least:.0f}x", faster >= least)
        report(
            f"{rows:,}: speed of {name} / sort and write",
            f"{speed:.2f}",
            f">= {MIN_OF_SORT}",
            speed >= MIN_OF_SORT,
        )
        less = arena.megabytes(rows, "known") / arena.megabytes(rows, name)
        report(
            f"{rows:,}: memory of known / {name}", f"{less:.1f}x", f">= {MIN_MEMORY:.0f}x", less >= MIN_MEMORY
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a tenth of the rows")
    divisor = 10 if parser.parse_args().small else 1
    folder = Path(tempfile.mkdtemp(prefix="gristmill-bench-"))
    try:
        arena = Arena(folder)
        for rows, probes in ((500_000, 18_900), (10_000_000, 20_000)):
            arena.rounds(rows // divisor, probes // divisor, list(CONTENDERS))
            report_set(arena, rows // divisor, rows)
        small, large = 10_000_000 // divisor, 30_000_000 // divisor
        arena.rounds(large, 20_000 // divisor, ["ours", "spread"], rounds=1)
        for name in ("ours", "spread"):
            growth = arena.megabytes(large, name) / arena.megabytes(small, name)
            [run] = arena.runs[large, name]
            report(f"{large:,}: {name}", f"{run.seconds:.2f} s", f"{run.megabytes:.0f} MB")
            report(
                f"memory of {name}, {large:,} / {small:,}",
                f"{growth:.2f}x",
                f"<= {MAX_GROWTH}x",
                growth <= MAX_GROWTH,
            )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
