"""Run the first pass: screen the measurements of some files, and sort them into runs by their probe's hash."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from schemas.errors import WorkError
from schemas.run import FileRecord, Receipt, RowLedger
from tasks.packing.arrays import stable_order
from tasks.probes.rows.addresses import families, probe_hashes
from tasks.probes.rows.pieces import Piece, Reading
from tasks.probes.rows.reading import SPILL_ROWS, read_row_batches
from tasks.probes.rows.screening import Columns, screen, unusable
from tasks.probes.spill import PROBES_SCHEMA, Spill, SpillRef, write_spill
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
        spill_rows: largest number of rows in a run.
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
    root = job.root
    spill = Path(job.spill_dir) if job.spill_dir else None
    records: list[FileRecord] = []
    rejected: Counter[str] = Counter()
    rows_in = rows_used = filled = runs = 0
    with RejectWriter(job.folder / REJECTS) as rejects:
        for run in read_row_batches(job.pieces, job.spill_rows, job.reading):
            families_of_both = [
                families(run.rows.column(name).dictionary) for name in ("src_addr", "dst_addr")
            ]
            columns = screen(run.rows, *families_of_both)
            usable = int(columns.usable.sum())
            rows_in += run.rows.num_rows
            filled += columns.filled
            for row, reason, detail in unusable(run.rows, columns, *families_of_both):
                reason, detail = run.faults.get(row, (reason, detail))
                origin = run.origin(row)
                rejects.add(origin.name, origin.row, reason, origin.prefix + detail)
                rejected[reason] += 1
            if usable:
                sorted_run = sort_spill(run.rows, columns, job.seed)
                records.append(write_spill(root, spill, SpillRef(job.stage, runs), sorted_run))
                rows_used += usable
                runs += 1
        records += rejects.finish(root)
    return job.receipt(
        records,
        ledger=RowLedger(rows_in=rows_in, rows_used=rows_used, rejected=dict(sorted(rejected.items()))),
        statistics={"runs": runs, "versions_filled": filled},
    )


def sort_spill(rows: pa.RecordBatch, columns: Columns, seed: int) -> Spill:
    """Sort the usable rows of a run by the hash of their probe, ties in input order, and summarise its probes.

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
    refuse_collisions(sorted_hashes)

    # Then order the rows by the rank of their probe: small integers sort faster than 64-bit hashes.
    ranks = np.zeros(len(addresses), dtype=np.int32)
    ranks[present[by_hash]] = np.arange(len(present), dtype=np.int32)
    order = stable_order(ranks[src_codes], len(present))
    if not everything:
        order = kept[order]
    dst_codes = columns.dst_codes[order]
    lengths = pc.binary_length(targets).to_numpy()
    probe_rows = counts[present[by_hash]]
    starts = np.cumsum(probe_rows) - probe_rows
    probes = pa.record_batch(
        [
            pa.array(sorted_hashes),
            addresses.take(pa.array(present[by_hash])),
            pa.array(probe_rows),
            pa.array(np.add.reduceat(lengths[dst_codes], starts, dtype=np.int64)),
        ],
        schema=PROBES_SCHEMA,
    )
    return Spill(probes, targets, columns.times[order], dst_codes, columns.rtts[order])


def refuse_collisions(sorted_hashes: NDArray[np.uint64]) -> None:
    """Refuse probes that share a hash, because the second pass finds rows by the hash of their probe alone.

    Two of a million probes share a hash once in 40 million runs.

    Raises:
        WorkError: `hash_collision`: two probes have the same hash.
    """
    if (sorted_hashes[1:] == sorted_hashes[:-1]).any():
        raise WorkError(
            "two probes have the same 64-bit hash; set another seed", code="hash_collision", where="seed"
        )
