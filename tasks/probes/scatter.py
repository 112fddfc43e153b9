"""Run the first pass: screen the measurements of some files, and sort them into runs by their probe's hash.

Rows are sorted a quarter of a million at a time; the batches of up to 8 million rows become one run.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.run import FileRecord, Receipt, RowLedger
from tasks.packing.arrays import owners, stable_order
from tasks.probes.rows.addresses import families, probe_hashes
from tasks.probes.rows.pieces import Piece, Reading
from tasks.probes.rows.reading import SPILL_ROWS, read_row_batches
from tasks.probes.rows.screening import Columns, screen, unusable
from tasks.probes.rows.sorting import time_order
from tasks.probes.runs.layout import ITEM, RECORD
from tasks.probes.runs.place import RunRef, place_of, record_of
from tasks.probes.runs.texts import used_texts
from tasks.probes.runs.windows import refuse_collisions
from tasks.probes.runs.write import Batch, RunWriter
from tasks.run.contract import Job
from tasks.run.memory import release_memory
from tasks.run.rejects import REJECTS, RejectWriter


@dataclass(frozen=True, kw_only=True)
class ScatterJob(Job):
    """Scatter some row groups or text segments, in input order.

    Attributes:
        pieces: what to read; `reading`: how.
        seed: seed of the probes' hash.
        spill_dir: folder for the runs, or empty for the stage folder.
        spill_rows: largest number of rows sorted at a time.
    """

    task: ClassVar[str] = "scatter"
    pieces: tuple[Piece, ...]
    seed: int
    reading: Reading = field(default_factory=Reading)
    spill_dir: str = ""
    spill_rows: int = SPILL_ROWS


def scatter_rows(job: ScatterJob) -> Receipt:
    """Screen and sort the rows of a job.

    Raises:
        InputError: a file is damaged.
        WorkError: `hash_collision`: two probes have the same hash.
        StorageError: a run cannot be written.
    """
    release_memory()
    rejected: Counter[str] = Counter()
    rows_in = filled = 0
    with RejectWriter(job.folder / REJECTS) as rejects, _Runs(job) as runs:
        for batch in read_row_batches(job.pieces, job.spill_rows, job.reading):
            families_of_both = [
                families(batch.rows.column(name).dictionary) for name in ("src_addr", "dst_addr")
            ]
            columns = screen(batch.rows, *families_of_both)
            rows_in += batch.rows.num_rows
            filled += columns.filled
            for row, reason, detail in unusable(batch.rows, columns, *families_of_both):
                reason, detail = batch.faults.get(row, (reason, detail))
                origin = batch.origin(row)
                rejects.add(origin.name, origin.row, reason, origin.prefix + detail)
                rejected[reason] += 1
            if columns.usable.any():
                runs.add(sort_batch(batch.rows, columns, job.seed))
        runs.finish()
        records = [*runs.records, *rejects.finish(job.root)]
    rows_used = sum(run["rows"] for run in runs.statistics)
    return job.receipt(
        records,
        ledger=RowLedger(rows_in=rows_in, rows_used=rows_used, rejected=dict(sorted(rejected.items()))),
        statistics={"runs": runs.statistics, "versions_filled": filled},
    )


class _Runs:
    """Write the runs of a job, one after the other."""

    def __init__(self, job: ScatterJob) -> None:
        self._job = job
        self._spill = Path(job.spill_dir) if job.spill_dir else None
        self._open: RunWriter | None = None
        self.records: list[FileRecord] = []
        self.statistics: list[dict[str, int]] = []

    def add(self, batch: Batch) -> None:
        if self._open is not None and not self._open.has_room(batch):
            self.finish()
        if self._open is None:
            self._open = RunWriter(place_of(self._job.root, self._spill, self._ref))
        self._open.append(batch)

    @property
    def _ref(self) -> RunRef:
        return RunRef(self._job.stage, len(self.records))

    def finish(self) -> None:
        if self._open is not None:
            self.statistics.append(self._open.statistics())
            self.records.append(record_of(self._job.root, self._ref, self._open.finish()))
            self._open = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        if self._open is not None:
            self._open.__exit__(*exc_info)


def sort_batch(rows: pa.RecordBatch, columns: Columns, seed: int) -> Batch:
    """Sort the usable rows of a batch by the hash of their probe, then by time, ties in input order.

    Raises:
        WorkError: `hash_collision`: two probes have the same hash.
    """
    # Sort the distinct probes, which are far fewer than the rows.
    kept = np.flatnonzero(columns.usable)
    everything = len(kept) == len(columns.usable)
    src_codes = columns.src_codes if everything else columns.src_codes[kept]
    addresses, targets = rows.column(1).dictionary, rows.column(2).dictionary
    counts = np.bincount(src_codes, minlength=len(addresses))
    present = np.flatnonzero(counts)
    present_hashes = probe_hashes(addresses, seed)[present]
    by_hash = np.argsort(present_hashes, kind="stable")
    sorted_hashes = present_hashes[by_hash]
    refuse_collisions(sorted_hashes[1:] == sorted_hashes[:-1])

    # Then order the rows by the rank of their probe: small integers sort faster than 64-bit hashes.
    ranks = np.zeros(len(addresses), dtype=np.int32)
    ranks[present[by_hash]] = np.arange(len(present), dtype=np.int32)
    order = stable_order(ranks[src_codes], len(present))
    if not everything:
        order = kept[order]
    probe_rows = counts[present[by_hash]]
    # Only probes whose rows are late are sorted by time: measurements mostly arrive in time order.
    late = time_order(owners(probe_rows), columns.times[order])
    if late is not None:
        order = order[late]

    items = np.empty(len(order), ITEM)
    items["time"], items["rtt"] = columns.times[order], columns.rtts[order]
    items["dst"], targets = used_texts(columns.dst_codes[order], targets)
    lengths = pc.binary_length(targets).to_numpy()[items["dst"]]
    records = np.zeros(len(present), RECORD)
    records["position"], records["length"] = sorted_hashes, probe_rows
    records["dst_bytes"] = np.add.reduceat(lengths, np.cumsum(probe_rows) - probe_rows, dtype=np.int64)
    sources = addresses.take(pa.array(present[by_hash])).cast(pa.binary())
    records["src"] = np.array(sources.to_pylist(), RECORD["src"])
    return Batch(records, items, targets)
