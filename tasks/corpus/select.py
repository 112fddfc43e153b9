"""The selection of one bucket: its cutoff, and how many rows each row group gives.

Nothing is read but eligibility bits; ids are hashed in batches, in other processes when there are many, because
the vectorised MD5 holds the GIL often enough that two threads are slower than one.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from schemas.run import Receipt, RowLedger
from tasks.corpus.inventory import SourceFile
from tasks.corpus.selection import (
    Band,
    BandCount,
    Cutoff,
    IdRange,
    find_cutoff,
    keep_rows,
    scan,
    split_batches,
)
from tasks.store.arrays import read_array, write_array
from tasks.store.layout import stage_folder

SELECTED = "selected.npy"
# Below this many ids a second process takes longer to start than to help.
_POOL_IDS = 40_000_000


@dataclass(frozen=True)
class SelectWork:
    """One bucket.

    Attributes:
        files: in tie order.
        bitmaps: for each file its eligibility bitmap, or an empty string if every row may be sampled.
        count: documents wanted.
        eligible: documents that may be sampled, over all files.
    """

    task: ClassVar[str] = "select"
    part: ClassVar[int] = 0
    output_dir: str
    stage: str
    seed: int
    bucket: str
    files: tuple[SourceFile, ...]
    bitmaps: tuple[str, ...]
    count: int
    eligible: int
    workers: int


class Eligibility:
    """`(file, start, stop) -> bool[stop - start]` over bitmaps; picklable, maps files when first asked.

    Args:
        bitmaps: file index to the path of its bitmap; every row of other files may be sampled.
    """

    def __init__(self, bitmaps: Mapping[int, str]) -> None:
        self._bitmaps = {file: path for file, path in bitmaps.items() if path}
        self._open: dict[int, NDArray[np.uint8]] = {}

    def __bool__(self) -> bool:
        """Whether any row may be barred."""
        return bool(self._bitmaps)

    def __reduce__(self) -> tuple[type[Eligibility], tuple[dict[int, str]]]:
        return type(self), (self._bitmaps,)

    def __call__(self, file: int, start: int, stop: int) -> NDArray[np.bool_]:
        if file not in self._bitmaps:
            return np.ones(stop - start, dtype=bool)
        if file not in self._open:
            self._open[file] = read_array(Path(self._bitmaps[file]))
        first = start // 8
        bits = np.unpackbits(self._open[file][first : -(-stop // 8)], bitorder="little")
        return bits[start - 8 * first : stop - 8 * first].astype(bool)


def select_bucket(work: SelectWork) -> Receipt:
    """Find the bucket's cutoff and count its selected rows by row group.

    Statistics: `cutoff` `[hash, file, row]`, `selected`, `eligible`. The file `selected.npy` holds
    int64[row groups of all files, in file order].

    Raises:
        StorageError: the counts cannot be written.
    """
    root = Path(work.output_dir)
    cutoff = _find(work)
    selected = _count(work, cutoff)
    record = write_array(stage_folder(root, work.stage) / SELECTED, selected, root)
    used = int(selected.sum())
    return Receipt(
        task=work.task,
        stage=work.stage,
        part=work.part,
        files=(record,),
        ledger=RowLedger(rows_in=work.eligible, rows_used=used, not_selected=work.eligible - used),
        statistics={"cutoff": list(cutoff), "selected": used, "eligible": work.eligible},
    )


def _find(work: SelectWork) -> Cutoff:
    batches = split_batches([file.rows for file in work.files])
    eligible = Eligibility(dict(enumerate(work.bitmaps))) or None
    paths = [file.name for file in work.files]
    workers = min(work.workers, len(batches), os.cpu_count() or 1)
    if workers < 2 or work.eligible < _POOL_IDS:
        return find_cutoff(work.count, work.eligible, partial(_scan_here, batches, work, paths, eligible))
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:

        def scan_in_pool(edges: Band) -> Iterator[BandCount]:
            job = partial(
                scan, seed=work.seed, bucket=work.bucket, paths=paths, edges=edges, eligible=eligible
            )
            return pool.map(job, batches)

        return find_cutoff(work.count, work.eligible, scan_in_pool)


def _scan_here(
    batches: Sequence[list[IdRange]],
    work: SelectWork,
    paths: Sequence[str],
    eligible: Eligibility | None,
    edges: Band,
) -> Iterable[BandCount]:
    return (scan(batch, work.seed, work.bucket, paths, edges, eligible) for batch in batches)


def _count(work: SelectWork, cutoff: Cutoff) -> NDArray[np.int64]:
    """Selected rows of every row group, file by file."""
    eligible = Eligibility(dict(enumerate(work.bitmaps)))
    counts = []
    for index, file in enumerate(work.files):
        start = 0
        for group in file.groups:
            kept = kept_rows(
                work.seed, work.bucket, file.name, IdRange(index, start, start + group.rows), cutoff, eligible
            )
            counts.append(int(np.count_nonzero(kept)))
            start += group.rows
    return np.array(counts, dtype=np.int64)


def kept_rows(
    seed: int, bucket: str, name: str, ids: IdRange, cutoff: Cutoff, eligible: Eligibility
) -> NDArray[np.bool_]:
    """bool[ids.stop - ids.start]: at or below the cutoff, and allowed."""
    kept = keep_rows(seed, bucket, name, ids, cutoff)
    return kept & eligible(*ids)
