"""Find the rows whose conversation an earlier row of the data set has, where groups keep equal ones apart.

Without groups, equal conversations lie side by side, and each shard finds its own. With groups they may lie anywhere:
each job here takes a range of digests, looks for them in the records of all spools, and names the rows to leave out.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from schemas.run import Receipt
from tasks.run.contract import Job
from tasks.run.layout import stage_folder
from tasks.sft.order.positions import RING
from tasks.sft.order.spool import open_spools
from tasks.storage.arrays import read_array, write_array

# Rows that a job holds, about: 80 MB.
_ROWS = 1 << 21
_ROW = np.dtype([("digest", "<u8", 2), ("position", "<u8"), ("row", "<u8"), ("part", "<u4"), ("file", "<u4")])
_ORIGIN = ("part", "file", "row")


@dataclass(frozen=True, kw_only=True)
class RepeatsJob(Job):
    """A range of digests of a data set.

    Attributes:
        spool_stages: stage hashes of the spools, in part order.
        low, high: the range of the digest's first half.
    """

    task: ClassVar[str] = "repeats"
    spool_stages: tuple[str, ...]
    low: int
    high: int


def ranges_of_digests(sequences: int) -> list[tuple[int, int]]:
    """Return the range of each job: as many as bound its memory, from the number of sequences alone.

    >>> len(ranges_of_digests(0)), len(ranges_of_digests(5 << 20))
    (1, 3)
    """
    jobs = max(1, -(-sequences // _ROWS))
    edges = [RING * number // jobs for number in range(jobs + 1)]
    return list(itertools.pairwise(edges))


def find_repeats(job: RepeatsJob) -> Receipt:
    """Write the rows to leave out, by position.

    Raises:
        IntegrityError: a spool is damaged.
    """
    found = [np.zeros(0, _ROW)]
    low, last = np.uint64(job.low), np.uint64(job.high - 1)
    with open_spools(job.root, job.spool_stages) as spools:
        for part, spool in enumerate(spools):
            records = spool.records(0, RING)
            half = records["digest"][:, 0]
            records = records[(half >= low) & (half <= last)]
            rows = np.zeros(len(records), _ROW)
            for name in ("digest", "position", "row", "file"):
                rows[name] = records[name]
            rows["part"] = part
            found.append(rows)
    rows = np.concatenate(found)
    digest = rows["digest"]
    rows = rows[np.lexsort((*(rows[name] for name in reversed(_ORIGIN)), digest[:, 1], digest[:, 0]))]
    out = _later(rows)
    out = out[np.argsort(out["position"], kind="stable")]
    record = write_array(_path(job.root, job.stage, job.part), out, job.root)
    return job.receipt([record], statistics={"rows": len(out)})


def _later(rows: NDArray[Any]) -> NDArray[Any]:
    """Return, of rows in the order of digests and origins, all but the first row of each digest, each once."""
    if not len(rows):
        return rows
    begins = np.concatenate(([True], np.any(rows["digest"][1:] != rows["digest"][:-1], axis=1)))
    first = rows[np.flatnonzero(begins)[np.cumsum(begins) - 1]]
    # A row with several sequences has as many records.
    kept = np.all([rows[name] == first[name] for name in _ORIGIN], axis=0)
    again = np.concatenate(([False], np.all([rows[name][1:] == rows[name][:-1] for name in _ORIGIN], axis=0)))
    later: NDArray[Any] = rows[~kept & ~(again & ~begins)]
    return later


def read_repeats(root: Path, stage: str, parts: int, intervals: Sequence[tuple[int, int]]) -> NDArray[Any]:
    """Return the rows to leave out whose positions lie in the intervals."""
    found = [np.zeros(0, _ROW)]
    for part in range(parts):
        rows = read_array(_path(root, stage, part))
        for low, high in intervals:
            begin = np.searchsorted(rows["position"], np.uint64(low), "left")
            end = np.searchsorted(rows["position"], np.uint64(high - 1), "right")
            found.append(np.array(rows[begin:end]))
    return np.concatenate(found)


def among(rows: NDArray[Any], repeats: NDArray[Any]) -> NDArray[np.bool_]:
    """Mark the rows that are among `repeats`, by where they came from: bool[rows]."""
    origin = np.dtype([(name, _ROW[name]) for name in _ORIGIN])
    both = []
    for values in (repeats, rows):
        keys = np.zeros(len(values), origin)
        for name in _ORIGIN:
            keys[name] = values[name]
        both.append(keys)
    return np.asarray(np.isin(both[1], both[0]), bool)


def _path(root: Path, stage: str, part: int) -> Path:
    return stage_folder(root, stage) / f"repeats-{part:06d}.npy"
