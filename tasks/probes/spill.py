"""Sorted runs between the two passes: two uncompressed Arrow IPC files a run, read by memory map.

- `run-000000.rows.arrow`, a row a measurement, sorted by the hash of its probe, then in input order:
  `event_time timestamp[us], dst_addr dictionary<int32, string>, ip_version int8, rtt float32`.
- `run-000000.probes.arrow`, a row a probe, sorted by hash: `hash uint64, src_addr string, rows int64` (in this run),
  `dst_bytes int64` (of their destination addresses).

So any range of hashes is one slice of each file. With a spill folder the files lie there and the stage folder holds
symbolic links to them: a receipt's files are looked at through the links.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.errors import IntegrityError
from schemas.run import FileRecord
from tasks.store.atomic import AtomicFile, storage_errors, swap_symlink
from tasks.store.layout import stage_folder

ROWS_SCHEMA = pa.schema(
    [
        ("event_time", pa.timestamp("us")),
        ("dst_addr", pa.dictionary(pa.int32(), pa.string())),
        ("ip_version", pa.int8()),
        ("rtt", pa.float32()),
    ]
)
PROBES_SCHEMA = pa.schema(
    [("hash", pa.uint64()), ("src_addr", pa.string()), ("rows", pa.int64()), ("dst_bytes", pa.int64())]
)


@dataclass(frozen=True)
class RunRef:
    """Where a run lies: its stage and its number in it."""

    stage: str
    number: int

    def paths(self, root: Path) -> tuple[Path, Path]:
        """The files of rows and of probes below an output directory."""
        stem = stage_folder(root, self.stage) / f"run-{self.number:06d}"
        return Path(f"{stem}.rows.arrow"), Path(f"{stem}.probes.arrow")


def write_run(
    root: Path, spill: Path | None, ref: RunRef, rows: pa.RecordBatch, probes: pa.RecordBatch
) -> list[FileRecord]:
    """Write a run; returns the records of its files relative to `root`.

    Raises:
        StorageError: a file cannot be written or linked.
    """
    return [
        _write(root, spill, path, batch) for path, batch in zip(ref.paths(root), (rows, probes), strict=True)
    ]


def _write(root: Path, spill: Path | None, path: Path, batch: pa.RecordBatch) -> FileRecord:
    home = root if spill is None else spill
    target = home / path.relative_to(root)
    with AtomicFile(target) as file, pa.ipc.new_file(pa.PythonFile(file, mode="w"), batch.schema) as writer:
        writer.write_batch(batch)
    if spill is not None:
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        swap_symlink(path, str(target))
    return file.record(home)


@dataclass(frozen=True)
class SpilledRun:
    """A run, mapped.

    Attributes:
        hashes: uint64[p]; `starts`: int64[p + 1], the rows of each probe.
        addresses: string[p]; `dst_bytes`: int64[p].
        path: the file of its rows.
    """

    hashes: NDArray[np.uint64]
    starts: NDArray[np.int64]
    addresses: pa.StringArray
    dst_bytes: NDArray[np.int64]
    path: Path

    def map_rows(self) -> pa.RecordBatch:
        """The rows, a batch of `ROWS_SCHEMA`, mapped anew: pages that were read stay resident as long as a map.

        Raises:
            IntegrityError: `bad_spill`: the file is damaged.
        """
        rows = _map(self.path, ROWS_SCHEMA)
        if self.starts[-1] != rows.num_rows:
            raise IntegrityError(
                f"its probes have {self.starts[-1]} rows and there are {rows.num_rows}; remove the stage and run "
                "again",
                code="bad_spill",
                where=str(self.path),
            )
        return rows


def read_probes(root: Path, ref: RunRef) -> pa.RecordBatch:
    """The probes of a run.

    Raises:
        IntegrityError: `bad_spill`: the file is damaged.
    """
    return _map(ref.paths(root)[1], PROBES_SCHEMA)


def open_run(root: Path, ref: RunRef) -> SpilledRun:
    """Map the probes of a run.

    Raises:
        IntegrityError: `bad_spill`: a file is damaged.
    """
    probes = read_probes(root, ref)
    counts: NDArray[np.int64] = probes.column(2).to_numpy()
    starts = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=starts[1:])
    return SpilledRun(
        probes.column(0).to_numpy(), starts, probes.column(1), probes.column(3).to_numpy(), ref.paths(root)[0]
    )


def _map(path: Path, schema: pa.Schema) -> pa.RecordBatch:
    try:
        reader: Any = pa.ipc.open_file(pa.memory_map(str(path)))
        if reader.schema != schema or reader.num_record_batches != 1:
            raise pa.ArrowInvalid(f"its schema is {reader.schema}")
        return reader.get_batch(0)
    except (OSError, pa.ArrowException) as error:
        raise IntegrityError(
            f"a sorted run cannot be read: {error}; remove its stage and run again",
            code="bad_spill",
            where=str(path),
        ) from error
