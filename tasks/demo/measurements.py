"""Generate a synthetic set of network measurements, as probes around the world would report them.

It has these properties, all drawn from one seed, so every machine writes the same values:

- 40,000 round trips of 400 probes over 30 days, in two Parquet files, in time order;
- heavy tail: a probe's share falls with its rank (Zipf, exponent 0.9); the busiest has a ninth of all rows;
- 40% of the probes are IPv6, and measure IPv6 targets;
- a probe's round trips are lognormal around a median of its own; 8% of all failed (`rtt` -1);
- faults: 80 rows have no `rtt` and 80 a NaN, and are rejected; 40 have no `ip_version`, which is filled in.

Addresses are from the ranges reserved for benchmarks and documentation (RFC 2544, 3849 and 5737).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.storage.atomic import AtomicFile

ROWS, PROBES, TARGETS = 40_000, 400, 200
_FILES = 2
_SEED = 0
_START_S = 1_735_689_600  # 2025-01-01
_SPAN_S = 30 * 86_400


def write_measurements(folder: Path) -> int:
    """Write the set into `folder`; return its number of rows."""
    table = measurements()
    rows = -(-table.num_rows // _FILES)
    for number in range(_FILES):
        with AtomicFile(folder / f"measurements-{number}.parquet") as file:
            pq.write_table(
                table.slice(number * rows, rows), pa.PythonFile(file, mode="w"), compression="zstd"
            )
    return ROWS


def measurements() -> pa.Table:
    """Return the set as one table of `event_time`, `src_addr`, `dst_addr`, `ip_version`, `rtt`."""
    rng = np.random.default_rng(_SEED)
    is_six = rng.random(PROBES) < 0.4
    weights = 1 / np.arange(1, PROBES + 1) ** 0.9
    owner = np.searchsorted(np.cumsum(weights) / weights.sum(), rng.random(ROWS)).clip(max=PROBES - 1)
    six = is_six[owner]
    times = np.sort(rng.integers(_START_S * 10**6, (_START_S + _SPAN_S) * 10**6, ROWS))
    rtt = np.exp(rng.normal(3.5, 0.8, PROBES)[owner] + rng.normal(0, 0.2, ROWS)).astype(np.float32)
    rtt[rng.random(ROWS) < 0.08] = -1
    no_rtt, nan_rtt, no_version = np.split(rng.choice(ROWS, 200, replace=False), [80, 160])
    rtt[nan_rtt] = np.nan
    sources = pa.array([_source(number, bool(six)) for number, six in enumerate(is_six)])
    targets = pa.array([_target(number, six) for six in (False, True) for number in range(TARGETS)])
    versions = np.where(six, 6, 4).astype(np.int8)
    return pa.table(
        {
            "event_time": pa.array(times).cast(pa.timestamp("us")),
            "src_addr": sources.take(pa.array(owner)),
            "dst_addr": targets.take(pa.array(rng.integers(0, TARGETS, ROWS) + TARGETS * six)),
            "ip_version": pa.array(versions, mask=_mask(no_version)),
            "rtt": pa.array(rtt, mask=_mask(no_rtt)),
        }
    )


def _source(number: int, six: bool) -> str:
    return f"2001:db8:{number:x}::1" if six else f"198.18.{number >> 8}.{number & 255}"


def _target(number: int, six: bool) -> str:
    return f"2001:db8:ffff::{number:x}" if six else f"203.0.113.{number}"


def _mask(rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    mask = np.zeros(ROWS, dtype=bool)
    mask[rows] = True
    return mask
