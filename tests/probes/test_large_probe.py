"""One probe with five million measurements: split into records, complete, in order, in bounded memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from array_record.python.array_record_module import ArrayRecordReader

ROOT = Path(__file__).resolve().parents[2]
ROWS, TARGETS = 5_000_000, 3_000
LIMIT = 8 << 20
# A set of Python objects for them takes five gigabytes; the columns of the rows alone, 16 bytes each, take 80.
MOST_MEGABYTES = 300

RUN = """
import json, sys
from measurements import build_serially, config_of
manifest, _ = build_serially(config_of(sys.argv[1], sys.argv[2], train_ratio=1.0))
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM:"))
print(json.dumps([manifest.ledger.rows_used, int(peak.split()[1]) / 1024]))
"""


def test_five_million_measurements_of_one_probe(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    targets = pa.array([f"2001:db8:{i:x}::{i * 7:x}" for i in range(TARGETS)])
    times = np.arange(ROWS) * 1_000_000 + 1_600_000_000_000_000
    late = np.flatnonzero(rng.random(ROWS) < 0.01)
    times[late] = times[rng.permutation(late)]
    codes = rng.integers(0, TARGETS, ROWS)
    rtts = rng.random(ROWS).astype(np.float32)
    (tmp_path / "in").mkdir()
    for number, rows in enumerate(np.array_split(np.arange(ROWS), 2)):
        source = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(rows), np.int32)), ["2001:db8::1"])
        table = pa.table(
            {
                "event_time": pa.array(times[rows]).cast(pa.timestamp("us")),
                "src_addr": source,
                "dst_addr": targets.take(pa.array(codes[rows])),
                "ip_version": pa.array(np.full(len(rows), 6, np.int8)),
                "rtt": pa.array(rtts[rows]),
            }
        )
        pq.write_table(table, tmp_path / "in" / f"m{number}.parquet", row_group_size=500_000)

    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "tests" / "probes")))
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path / "in"), str(tmp_path / "out")],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    used, megabytes = json.loads(done.stdout)
    assert used == ROWS
    assert megabytes < MOST_MEGABYTES
    order = np.argsort(times, kind="stable")
    reader = ArrayRecordReader(str(tmp_path / "out" / "latest" / "train-00000-of-00001.arrayrecord"))
    at, sizes = 0, []
    for part in range(reader.num_records()):
        row = pa.ipc.open_stream(reader.read([part])[0]).read_all()
        blob = row["measurements"][0].as_buffer()
        sizes.append(len(blob))
        measured = pa.ipc.open_stream(blob).read_all()
        rows = order[at : at + measured.num_rows]
        assert (row["part"][0].as_py(), row["n_parts"][0].as_py()) == (part, reader.num_records())
        assert np.array_equal(measured["event_time"].cast(pa.int64()).to_numpy(), times[rows])
        assert np.array_equal(measured["rtt"].to_numpy(), rtts[rows])
        assert measured["dst_addr"].combine_chunks().equals(targets.take(pa.array(codes[rows])))
        at += measured.num_rows
    reader.close()
    assert at == ROWS
    assert max(sizes) <= LIMIT and min(sizes) > 0.98 * max(sizes) and len(sizes) > 20
