"""The first pass: measurements of some row groups, screened and sorted into runs by the hash of their probe."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.errors import WorkError
from schemas.run import FileRecord, Receipt, RowLedger
from tasks.probes.addresses import Remembered, families, family, probe_hash, probe_hashes
from tasks.probes.inventory import Piece
from tasks.probes.reading import RUN_ROWS, Run, read_runs
from tasks.probes.screening import Columns, screen, why_not
from tasks.probes.sorting import stable_order
from tasks.probes.spill import PROBES_SCHEMA, ROWS_SCHEMA, RunRef, write_run
from tasks.store.layout import stage_folder
from tasks.store.rejects import RejectWriter

REJECTS = "rejects.parquet"


@dataclass(frozen=True)
class ScatterWork:
    """Some row groups, in input order.

    Attributes:
        pieces: what to read.
        seed: of the probes' hash.
        spill_dir: where runs lie, or empty for the stage folder.
        run_rows: most rows of a run.
    """

    task: ClassVar[str] = "scatter"
    part: ClassVar[int] = 0
    output_dir: str
    stage: str
    pieces: tuple[Piece, ...]
    seed: int
    spill_dir: str = ""
    run_rows: int = RUN_ROWS


class _Known:
    """What has been found out about addresses so far in this work."""

    def __init__(self, seed: int) -> None:
        self.families = Remembered(family)
        self.hashes = Remembered(partial(probe_hash, seed=seed))


def scatter_rows(work: ScatterWork) -> Receipt:
    """Screen and sort the rows of `work`.

    Raises:
        InputError: a file is damaged.
        WorkError: `hash_collision`: two probes have the same hash.
        StorageError: a run cannot be written.
    """
    root = Path(work.output_dir)
    spill = Path(work.spill_dir) if work.spill_dir else None
    records: list[FileRecord] = []
    rejected: Counter[str] = Counter()
    known = _Known(work.seed)
    rows_in = rows_used = filled = runs = 0
    with RejectWriter(stage_folder(root, work.stage) / REJECTS) as rejects:
        for run in read_runs(work.pieces, work.run_rows):
            columns, source_families, target_families = _screened(run, known)
            rows_in += run.rows.num_rows
            filled += columns.filled
            usable = int(columns.usable.sum())
            if usable < run.rows.num_rows:
                for row in np.flatnonzero(~columns.usable).tolist():
                    found = (
                        int(source_families[columns.src_codes[row]]),
                        int(target_families[columns.dst_codes[row]]),
                    )
                    reason, detail = why_not(run.rows, row, found)
                    rejects.add(*run.origin(row), reason, detail)
                    rejected[reason] += 1
            if usable:
                rows, probes = sort_run(run.rows, columns, known.hashes)
                records += write_run(root, spill, RunRef(work.stage, runs), rows, probes)
                rows_used += usable
                runs += 1
        records += rejects.finish(root)
    return Receipt(
        task=work.task,
        stage=work.stage,
        part=work.part,
        files=tuple(records),
        ledger=RowLedger(rows_in=rows_in, rows_used=rows_used, rejected=dict(sorted(rejected.items()))),
        statistics={"runs": runs, "versions_filled": filled},
    )


def _screened(run: Run, known: _Known):  # type: ignore[no-untyped-def]
    sources = families(run.rows.column(1).dictionary, known.families)
    targets = families(run.rows.column(2).dictionary, known.families)
    return screen(run.rows, sources, targets), sources, targets


def sort_run(
    rows: pa.RecordBatch, columns: Columns, hashes: Remembered
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """The usable rows of a run, sorted by the hash of their probe, ties in input order; and its probes.

    Returns:
        Batches of `spill.ROWS_SCHEMA` and `spill.PROBES_SCHEMA`.

    Raises:
        WorkError: `hash_collision`.
    """
    kept = np.flatnonzero(columns.usable)
    everything = len(kept) == len(columns.usable)
    src_codes = columns.src_codes if everything else columns.src_codes[kept]
    addresses, targets = rows.column(1).dictionary, rows.column(2).dictionary
    counts = np.bincount(src_codes, minlength=len(addresses))
    present = np.flatnonzero(counts)
    present_addresses = addresses.take(pa.array(present))
    present_hashes = probe_hashes(present_addresses, hashes)
    by_hash = np.argsort(present_hashes, kind="stable")
    sorted_hashes = present_hashes[by_hash]
    refuse_collisions(sorted_hashes)

    ranks = np.zeros(len(addresses), dtype=np.int32)
    ranks[present[by_hash]] = np.arange(len(present), dtype=np.int32)
    order = stable_order(ranks[src_codes], len(present))
    if not everything:
        order = kept[order]
    dst_codes = columns.dst_codes[order]
    lengths = pc.binary_length(targets).to_numpy()
    probe_rows = counts[present[by_hash]]
    starts = np.cumsum(probe_rows) - probe_rows
    sorted_rows = pa.record_batch(
        [
            pa.array(columns.times[order]).view(pa.timestamp("us")),
            pa.DictionaryArray.from_arrays(pa.array(dst_codes), targets),
            pa.array(columns.versions[order]),
            pa.array(columns.rtts[order]),
        ],
        schema=ROWS_SCHEMA,
    )
    probes = pa.record_batch(
        [
            pa.array(sorted_hashes),
            present_addresses.take(pa.array(by_hash)),
            pa.array(probe_rows),
            pa.array(np.add.reduceat(lengths[dst_codes], starts, dtype=np.int64)),
        ],
        schema=PROBES_SCHEMA,
    )
    return sorted_rows, probes


def refuse_collisions(sorted_hashes: np.ndarray) -> None:  # type: ignore[type-arg]
    """Records are found by the hash of their probe alone; two of a million probes share one once in 40 million runs.

    Raises:
        WorkError: `hash_collision`.
    """
    if (sorted_hashes[1:] == sorted_hashes[:-1]).any():
        raise WorkError(
            "two probes have the same 64-bit hash; choose another seed", code="hash_collision", where="seed"
        )
