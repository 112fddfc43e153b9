"""Read an interval of positions from many runs: first the records of a window of it, then the measurements of some.

Each run gives one range of records for a window and one of measurements for each call of `read`, a few of them read
at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.errors import WorkError
from tasks.probes.runs.in_time import Stretch
from tasks.probes.runs.layout import RECORD
from tasks.probes.runs.read import Measurements, RunReader

# Records of a window, about: 10 MB.
_WINDOW_RECORDS = 1 << 17


@dataclass(frozen=True)
class Probes:
    """Hold distinct probes in the order of their hashes.

    Attributes:
        hashes: uint64[p]; `addresses`: bytes[p].
        rows: int64[p], numbers of measurements; `dst_bytes`: int64[p], bytes of their destination addresses.
    """

    hashes: NDArray[np.uint64]
    addresses: NDArray[np.bytes_]
    rows: NDArray[np.int64]
    dst_bytes: NDArray[np.int64]

    def take(self, which: slice | NDArray[np.bool_]) -> Probes:
        """Return some of them."""
        return Probes(self.hashes[which], self.addresses[which], self.rows[which], self.dst_bytes[which])


def probes_of(records: Sequence[NDArray[Any]]) -> Probes:
    """Return the probes of records that are each sorted by position.

    Raises:
        WorkError: `hash_collision`: two probes have the same hash.
    """
    together = np.concatenate([np.zeros(0, RECORD), *records])
    together = together[np.argsort(together["position"], kind="stable")]
    hashes, addresses = together["position"], together["src"]
    same = hashes[1:] == hashes[:-1]
    refuse_collisions(same & (addresses[1:] != addresses[:-1]))
    first = np.flatnonzero(np.concatenate([np.ones(min(len(hashes), 1), bool), ~same]))
    rows, dst_bytes = (
        np.add.reduceat(together[name], first, dtype=np.int64) if len(first) else np.zeros(0, np.int64)
        for name in ("length", "dst_bytes")
    )
    return Probes(hashes[first], addresses[first], rows, dst_bytes)


def refuse_collisions(collisions: NDArray[np.bool_]) -> None:
    """Refuse probes that share a hash, because the second pass finds rows by the hash of their probe alone.

    Two of a million probes share a hash once in 40 million runs.

    Raises:
        WorkError: `hash_collision`: two probes have the same hash.
    """
    if collisions.any():
        raise WorkError(
            "two probes have the same 64-bit hash; set another seed", code="hash_collision", where="seed"
        )


@dataclass(frozen=True)
class Part:
    """What a run has of some probes.

    Attributes:
        records: `RECORD`, sorted by position.
        measurements: of these records, one after the other; `codes` are indices into texts that all parts share.
    """

    records: NDArray[Any]
    measurements: Measurements

    def between(self, first: np.uint64, last: np.uint64) -> Part:
        """Return what it has of the probes with hashes from `first` to `last`, both included."""
        low, high = _places(self.records, first, last)
        ends = np.concatenate([[0], np.cumsum(self.records["length"], dtype=np.int64)])
        return Part(self.records[low:high], self.measurements.slice(int(ends[low]), int(ends[high])))


class Window:
    """The records of an interval of positions in all runs.

    Args:
        runs, records: the runs that have some, in input order.
        readers: reads several ranges at the same time.
    """

    def __init__(self, runs: Sequence[RunReader], records: Sequence[NDArray[Any]], readers: Executor) -> None:
        self._runs, self._records, self._readers = runs, records, readers
        self.probes = probes_of(records)

    def ranges(self, first: np.uint64, last: np.uint64) -> list[tuple[RunReader, NDArray[Any]]]:
        """Return the records of the probes with hashes from `first` to `last`, by run, in input order."""
        found = []
        for run, records in zip(self._runs, self._records, strict=True):
            low, high = _places(records, first, last)
            if low < high:
                found.append((run, records[low:high]))
        return found

    def stretches(self, probe: np.uint64) -> list[Stretch]:
        """Return where the measurements of a probe are, in input order; those of each are in time order."""
        return [
            Stretch(run, start, start + length)
            for run, records in self.ranges(probe, probe)
            for start, length in zip(records["start"].tolist(), records["length"].tolist(), strict=True)
        ]

    def read(self, first: np.uint64, last: np.uint64) -> tuple[list[Part], pa.LargeStringArray]:
        """Read the measurements of the probes with hashes from `first` to `last`.

        Returns:
            What each run has of them, in input order, and the texts that their codes refer to, each once.
        """
        ranges = self.ranges(first, last)
        found = list(self._readers.map(lambda one: one[0].read(*span_of(one[1])), ranges))
        texts = pa.concat_arrays([some.texts for some in found]).dictionary_encode()
        codes, base, parts = texts.indices.to_numpy(), 0, []
        for (_, records), some in zip(ranges, found, strict=True):
            shared = Measurements(
                some.times, codes[base : base + len(some.texts)][some.codes], some.rtts, some.texts
            )
            parts.append(Part(records, shared))
            base += len(some.texts)
        return parts, texts.dictionary.cast(pa.large_string())


def read_windows(runs: Sequence[RunReader], low: int, high: int, readers: Executor) -> Iterator[Window]:
    """Yield windows of an interval of positions, in order, each small enough for memory."""
    entries = list(readers.map(lambda run: run.spool.entries(low, high), runs))
    for first, end in pairwise([low, *_cuts(entries, [run.spool.stride for run in runs]), high]):
        records = list(readers.map(lambda run, first=first, end=end: run.records(first, end), runs))
        some = [place for place, found in enumerate(records) if len(found)]
        if some:
            yield Window([runs[place] for place in some], [records[place] for place in some], readers)


def span_of(records: NDArray[Any]) -> tuple[int, int]:
    """Return the first item of records that follow each other, and the end of the last one's."""
    return int(records["start"][0]), int(records["start"][-1]) + int(records["length"][-1])


def _cuts(entries: Sequence[NDArray[np.uint64]], strides: Sequence[int]) -> list[int]:
    """Return where windows begin, but for the first: positions between which there are about as many records."""
    positions = np.concatenate([np.zeros(0, np.uint64), *entries])
    records = np.repeat(np.array(strides, np.int64), [len(some) for some in entries])
    order = np.argsort(positions, kind="stable")
    window = np.cumsum(records[order]) // _WINDOW_RECORDS
    return [int(cut) for cut in np.unique(positions[order][1:][np.diff(window) > 0])]


def _places(records: NDArray[Any], first: np.uint64, last: np.uint64) -> tuple[int, int]:
    positions = records["position"]
    return int(np.searchsorted(positions, first, "left")), int(np.searchsorted(positions, last, "right"))
