"""Merge neighbouring runs of the first pass, so that a shard reads few and long ranges."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from schemas.run import Receipt
from tasks.probes.rows.sorting import cut_ranges
from tasks.probes.runs.layout import ITEM
from tasks.probes.runs.place import RunRef, place_of, record_of
from tasks.probes.runs.read import RunReader
from tasks.probes.runs.windows import span_of
from tasks.probes.runs.write import Batch, RunWriter
from tasks.run.contract import Job
from tasks.run.memory import release_memory
from tasks.spool.layout import RING

# Rows that are copied at a time.
_ROWS = 1 << 18


@dataclass(frozen=True, kw_only=True)
class MergeJob(Job):
    """Merge some runs.

    Attributes:
        runs: in input order.
        spill_dir: folder for the merged run, or empty for the stage folder.
    """

    task: ClassVar[str] = "merge"
    runs: tuple[RunRef, ...]
    spill_dir: str = ""


def merge_runs(job: MergeJob) -> Receipt:
    """Write one run that has the records of several, those of a probe in input order.

    Raises:
        IntegrityError: a run is damaged.
        StorageError: the merged run cannot be written.
    """
    release_memory()
    ref = RunRef(job.stage, 0)
    spill = Path(job.spill_dir) if job.spill_dir else None
    with RunWriter(place_of(job.root, spill, ref)) as writer:
        for run in job.runs:
            _copy(RunReader(job.root, run), writer)
        statistics = writer.statistics()
        file = writer.finish()
    return job.receipt([record_of(job.root, ref, file)], statistics={"runs": [statistics]})


def _copy(run: RunReader, writer: RunWriter) -> None:
    records = run.records(0, RING).copy()
    for low, high in cut_ranges(records["length"].astype(np.int64), _ROWS):
        some = run.read(*span_of(records[low:high]))
        items = np.empty(len(some.times), ITEM)
        items["time"], items["dst"], items["rtt"] = some.times, some.codes, some.rtts
        writer.append(Batch(records[low:high].copy(), items, some.texts))
