"""Select from one bucket: find its cutoff, and count the selected rows of each row group.

Only eligibility bits are read. Ids are hashed once, row group by row group; if there are many, in other processes,
because the vectorised MD5 holds the GIL often enough that two threads are slower than one.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from schemas.run import Receipt, RowLedger
from tasks.corpus.inventory import SourceFile
from tasks.corpus.selection.cutoff import (
    DEFAULT_BATCH_IDS,
    Band,
    BandCount,
    Cutoff,
    IdRange,
    find_cutoff,
    keep_rows,
    scan,
)
from tasks.run.contract import Job
from tasks.storage.arrays import read_array, write_array

SELECTED = "selected.npy"
# Below this many ids a second process takes longer to start than to help.
_POOL_IDS = 40_000_000


@dataclass(frozen=True, kw_only=True)
class SelectJob(Job):
    """Select from one bucket.

    Attributes:
        files: its files, in the order that decides ties.
        bitmaps: for each file its eligibility bitmap, or an empty string if every row may be sampled.
        count: documents wanted.
        eligible: documents that may be sampled, over all files.
    """

    task: ClassVar[str] = "select"
    seed: int
    bucket: str
    files: tuple[SourceFile, ...]
    bitmaps: tuple[str, ...]
    count: int
    eligible: int
    workers: int
    label: str = ""


class Eligibility:
    """Look up in bitmaps which rows may be sampled: `(file, start, stop) -> bool[stop - start]`.

    It is picklable, and maps a bitmap into memory when it is first needed.

    Args:
        bitmaps: path of the bitmap by file index; every row of other files may be sampled.
    """

    def __init__(self, bitmaps: Mapping[int, str]) -> None:
        self._bitmaps = {file: path for file, path in bitmaps.items() if path}
        self._open: dict[int, NDArray[np.uint8]] = {}

    def __bool__(self) -> bool:
        """Return whether any row may be excluded."""
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


def select_bucket(job: SelectJob) -> Receipt:
    """Find the bucket's cutoff and count its selected rows by row group.

    Its statistics are `cutoff` (`[hash, file, row]`), `selected` and `eligible`. The file `selected.npy` contains
    int64[row groups of all files, in file order].

    Raises:
        StorageError: the counts cannot be written.
    """
    root = job.root
    cutoff, selected = _select(job)
    record = write_array(job.folder / SELECTED, selected, root)
    used = int(selected.sum())
    return job.receipt(
        [record],
        ledger=RowLedger(rows_in=job.eligible, rows_used=used, not_selected=job.eligible - used),
        statistics={"cutoff": list(cutoff), "selected": used, "eligible": job.eligible},
    )


@dataclass(frozen=True)
class _GroupCounts:
    """Hold what a scan found in some row groups.

    Attributes:
        below: int64[groups], rows below the band.
        inside: the rows in the band.
    """

    below: NDArray[np.int64]
    inside: BandCount


def _select(job: SelectJob) -> tuple[Cutoff, NDArray[np.int64]]:
    """Return the cutoff, and the rows at or below it in every row group, from the same hashes."""
    groups = _row_groups(job.files)
    scanned: list[_GroupCounts] = []

    def scan_all(edges: Band) -> list[BandCount]:
        scanned[:] = _scan(job, groups, edges)
        return [counts.inside for counts in scanned]

    cutoff = find_cutoff(job.count, job.eligible, scan_all)
    if not scanned:
        # No rows or all rows are selected: none was hashed, and none needs to be.
        return cutoff, _count(job, groups, cutoff)
    below = np.concatenate([counts.below for counts in scanned])
    return cutoff, below + _count_inside(groups, BandCount.total(c.inside for c in scanned), cutoff)


def _row_groups(files: Sequence[SourceFile]) -> list[IdRange]:
    """Return the rows of every row group, file by file."""
    ranges = []
    for index, file in enumerate(files):
        start = 0
        for group in file.groups:
            ranges.append(IdRange(index, start, start + group.rows))
            start += group.rows
    return ranges


def _scan(job: SelectJob, groups: Sequence[IdRange], edges: Band) -> list[_GroupCounts]:
    scan_some = partial(
        _scan_groups,
        seed=job.seed,
        bucket=job.bucket,
        paths=[file.name for file in job.files],
        edges=edges,
        eligible=Eligibility(dict(enumerate(job.bitmaps))) or None,
    )
    batches = list(_batches(groups))
    workers = min(job.workers, len(batches), os.cpu_count() or 1)
    if workers < 2 or job.eligible < _POOL_IDS:
        return [scan_some(batch) for batch in batches]
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(scan_some, batches))


def _scan_groups(
    groups: Sequence[IdRange],
    seed: int,
    bucket: str,
    paths: Sequence[str],
    edges: Band,
    eligible: Eligibility | None,
) -> _GroupCounts:
    counts = [scan([ids], seed, bucket, paths, edges, eligible) for ids in groups]
    return _GroupCounts(np.array([count.below for count in counts], np.int64), BandCount.total(counts))


def _batches(groups: Sequence[IdRange]) -> Iterator[Sequence[IdRange]]:
    """Yield batches of consecutive row groups of about 32 M ids."""
    first = ids = 0
    for end, group in enumerate(groups, start=1):
        ids += group.stop - group.start
        if ids >= DEFAULT_BATCH_IDS or end == len(groups):
            yield groups[first:end]
            first, ids = end, 0


def _count_inside(groups: Sequence[IdRange], inside: BandCount, cutoff: Cutoff) -> NDArray[np.int64]:
    """Count the rows of the band that lie at or below the cutoff, by row group."""
    ties = (inside.files < cutoff.file) | ((inside.files == cutoff.file) & (inside.rows <= cutoff.row))
    limit = np.uint64(cutoff.hash)
    chosen = (inside.hashes < limit) | ((inside.hashes == limit) & ties)
    # Row groups lie end to end, in file order, so a row is in the last one that starts at or before it.
    starts = _places(np.array([g.file for g in groups]), np.array([g.start for g in groups]))
    rows = _places(inside.files[chosen], inside.rows[chosen])
    return np.bincount(np.searchsorted(starts, rows, side="right") - 1, minlength=len(groups))


def _places(files: NDArray[np.integer[Any]], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return one number for each file and row, in (file, row) order, for up to 10**12 rows per file."""
    return (files.astype(np.int64) << 40) + rows


def _count(job: SelectJob, groups: Sequence[IdRange], cutoff: Cutoff) -> NDArray[np.int64]:
    """Count the selected rows of every row group."""
    eligible = Eligibility(dict(enumerate(job.bitmaps)))
    kept = (
        kept_rows(job.seed, job.bucket, job.files[ids.file].name, ids, cutoff, eligible) for ids in groups
    )
    return np.array([np.count_nonzero(rows) for rows in kept], dtype=np.int64)


def kept_rows(
    seed: int, bucket: str, name: str, ids: IdRange, cutoff: Cutoff, eligible: Eligibility
) -> NDArray[np.bool_]:
    """Return bool[ids.stop - ids.start]: whether a row is at or below the cutoff, and eligible."""
    kept = keep_rows(seed, bucket, name, ids, cutoff)
    return kept & eligible(*ids)
