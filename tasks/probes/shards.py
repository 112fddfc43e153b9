"""Decide which probes are train, and cut both splits into shards, from what the runs say of themselves.

Nothing here grows with the rows. A shard is an interval of positions, that is, of hashes of probes. A run gives its
measurements by the upper 12 bits of their positions, and where that is too coarse, the sparse index of its records;
how many probes there are is estimated from the records of the first positions. Only a split of sorted addresses needs
all probes: they are read once, and wait in a file without a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.probes import TEST, TRAIN, ProbeSplit
from tasks.inputs.sizing import part_size
from tasks.probes.rows.addresses import train_end
from tasks.probes.runs.read import RunReader
from tasks.probes.runs.windows import Probes, probes_of, read_windows
from tasks.spool.layout import BUCKET_BITS, BUCKETS, RING
from tasks.storage.scratch import Scratch

_WIDTH = RING >> BUCKET_BITS
# A shard spans 64 to 512 MiB of uncompressed records: a restart repeats one, and readers open all.
_SMALLEST_SHARD_BYTES, _LARGEST_SHARD_BYTES = 64 << 20, 512 << 20
_SHARDS = 96
_ROW_BYTES = 17
# Frames and padding of a record.
_RECORD_BYTES = 1200
# Records from which the number of probes is estimated: two of a thousand off, if each has one record.
_SURVEY_RECORDS = 1 << 18
# Addresses that are sorted in memory: 45 MB.
_SORTED_ADDRESSES = 1 << 20
_PIECE_PROBES = 1 << 16
_READERS = 4

Ints = NDArray[np.int64]
# Opens the runs, one after the other: all of their indexes would be much.
Runs = Callable[[], Iterable[RunReader]]


@dataclass(frozen=True)
class SplitRule:
    """Decide which split a probe is in.

    Attributes:
        train_end: for a split by hash: probes with a hash below this are train.
        first_test: for a sorted split: addresses from this one on, in text order, are test; else `None`.
    """

    train_end: int
    first_test: str | None

    def is_train(self, probes: Probes) -> NDArray[np.bool_]:
        """Return which probes are in train: bool[p]."""
        if self.first_test is not None:
            return np.asarray(probes.addresses < self.first_test.encode(), bool)
        if self.train_end >= RING:
            return np.ones(len(probes.hashes), dtype=bool)
        return probes.hashes < np.uint64(self.train_end)


@dataclass(frozen=True)
class ShardRange:
    """Define one shard: the probes of a split whose hashes lie in `[low, high)`."""

    split: str
    low: int
    high: int


@dataclass(frozen=True)
class Plan:
    """The rule of the splits, and the shards of both, train first; a split without probes has none."""

    rule: SplitRule
    shards: tuple[ShardRange, ...]


def plan_shards(runs: Runs, dst_bytes: int, split: ProbeSplit, train_ratio: float, scratch: Path) -> Plan:
    """Plan the shards of some runs.

    Args:
        runs: opens them, in input order.
        dst_bytes: bytes of the destination addresses of all measurements.
        scratch: a folder for the probes of a sorted split, which are gone afterwards.

    Raises:
        WorkError: `hash_collision`: two probes have the same hash.
        IntegrityError: a run is damaged.
    """
    if split is ProbeSplit.SORTED:
        return _plan_sorted(list(runs()), train_ratio, scratch)
    rule = SplitRule(train_end(train_ratio), None)
    rows = sum((run.spool.histogram(distinct=False) for run in runs()), np.zeros(BUCKETS, np.int64))
    total = int(rows.sum())
    row_bytes = _ROW_BYTES + dst_bytes / max(total, 1)
    sizes = rows * row_bytes + _RECORD_BYTES * _count_probes(runs) / BUCKETS
    shard_bytes = shard_bytes_for(int(sizes.sum()))
    curve = Curve.of_buckets(sizes)
    heavy = np.flatnonzero(sizes * 2 > shard_bytes)
    if len(heavy):
        curve = curve.refined(*_entries_in(runs, heavy), row_bytes)
    shards = []
    for name, low, high in ((TRAIN, 0, rule.train_end), (TEST, rule.train_end, RING)):
        if _has_probes(runs, rows, low, high):
            shards += cut_shards(name, curve, low, high, shard_bytes)
    return Plan(rule, tuple(shards))


def shard_bytes_for(total_bytes: int) -> int:
    """Return how many bytes a shard may span: 64 MiB * 2**k, so that 96 shards hold everything; at most 512 MiB."""
    return min(part_size(total_bytes, _SMALLEST_SHARD_BYTES, _SHARDS), _LARGEST_SHARD_BYTES)


@dataclass(frozen=True)
class Curve:
    """How many bytes lie before each position, by straight lines between knots.

    Attributes:
        at: uint64[k], positions, ascending, the first of them 0; the last line ends at 2**64.
        before: int64[k + 1], bytes before each of them, and before 2**64.
    """

    at: NDArray[np.uint64]
    before: Ints

    @classmethod
    def of_buckets(cls, sizes: NDArray[Any]) -> Curve:
        """Return the curve of these bytes in intervals of equal width."""
        at = np.arange(len(sizes), dtype=np.uint64) * np.uint64(RING // len(sizes))
        return cls(at, _sums(sizes))

    def refined(self, positions: NDArray[np.uint64], rows: Ints, row_bytes: float) -> Curve:
        """Replace the lines in which some positions lie by lines from each of them to the next.

        Args:
            positions: ascending; rows: int64[n], measurements between each and the next.
        """
        size = np.diff(self.before).astype(np.float64)
        line = np.searchsorted(self.at, positions, "right") - 1
        own = np.bincount(line, rows * row_bytes, len(size))
        # What is left of a line, frames of records and what lies before the first position, stays at its beginning.
        some = np.bincount(line, minlength=len(size)) > 0
        size[some] = np.maximum(size[some] - own[some], 0)
        at = np.concatenate([self.at, positions])
        order = np.argsort(at, kind="stable")
        return Curve(at[order], _sums(np.concatenate([size, rows * row_bytes])[order]))

    def bytes_before(self, position: int) -> int:
        """Return how many bytes lie before a position."""
        if position >= RING:
            return int(self.before[-1])
        knot = int(np.searchsorted(self.at, np.uint64(position), "right")) - 1
        begin, width, before, size = self._line(knot)
        return before + size * (position - begin) // width if width else before

    def position_of(self, size: int) -> int:
        """Return the position before which there are this many bytes, fewer than all."""
        knot = int(np.searchsorted(self.before, size, "right")) - 1
        begin, width, before, own = self._line(knot)
        return begin + (size - before) * width // own

    def _line(self, knot: int) -> tuple[int, int, int, int]:
        begin = int(self.at[knot])
        end = int(self.at[knot + 1]) if knot + 1 < len(self.at) else RING
        before = int(self.before[knot])
        return begin, end - begin, before, int(self.before[knot + 1]) - before


def _sums(sizes: NDArray[Any]) -> Ints:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def cut_shards(split: str, curve: Curve, low: int, high: int, shard_bytes: int) -> list[ShardRange]:
    """Cut an interval of positions into shards of about equal size."""
    first, last = curve.bytes_before(low), curve.bytes_before(high)
    shards = max(1, -(-(last - first) // shard_bytes))
    inner = [curve.position_of(first + (last - first) * number // shards) for number in range(1, shards)]
    edges = sorted({low, high, *(edge for edge in inner if low < edge < high)})
    return [ShardRange(split, *edge) for edge in pairwise(edges)]


def _count_probes(runs: Runs) -> int:
    """Estimate how many probes there are: exactly, if there are few records."""
    records, bits = sum(run.spool.num_records for run in runs()), 0
    while records >> bits > _SURVEY_RECORDS:
        bits += 1
    return len(probes_of([run.records(0, RING >> bits) for run in runs()]).hashes) << bits


def _entries_in(runs: Runs, buckets: Ints) -> tuple[NDArray[np.uint64], Ints]:
    """Return the positions of the index entries of all runs in these buckets, and the rows up to the next."""
    positions, rows = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for run in runs():
        places = run.spool.index["position"]
        inside = np.isin((places >> np.uint64(64 - BUCKET_BITS)).astype(np.int64), buckets)
        positions.append(places[inside])
        rows.append(run.spool.weights(distinct=False)[inside])
    found, which = np.unique(np.concatenate(positions), return_inverse=True)
    return found, np.bincount(which, np.concatenate(rows), len(found)).astype(np.int64)


def _has_probes(runs: Runs, rows: Ints, low: int, high: int) -> bool:
    """Return whether there are probes in `[low, high)`, one edge of which is an edge of all positions."""
    first, end = -(-low // _WIDTH), high // _WIDTH
    if rows[first:end].any():
        return True
    # The bucket that the other edge divides.
    low, high = (low, min(first * _WIDTH, high)) if high == RING else (max(end * _WIDTH, low), high)
    return any(len(run.records(low, high)) for run in runs())


def _plan_sorted(runs: Sequence[RunReader], train_ratio: float, folder: Path) -> Plan:
    with Scratch(folder) as scratch, ThreadPoolExecutor(_READERS) as readers:
        for window in read_windows(runs, 0, RING, readers):
            scratch.append(_packed(window.probes))
        probes = scratch.bytes // _PROBE.itemsize
        count = int(train_ratio * probes)
        rule = SplitRule(RING, None) if count == probes else SplitRule(0, _address_of_rank(scratch, count))
        sizes = {TRAIN: np.zeros(BUCKETS), TEST: np.zeros(BUCKETS)}
        counts = dict.fromkeys(sizes, 0)
        for some in _pieces(scratch):
            bucket = (some.hashes >> np.uint64(64 - BUCKET_BITS)).astype(np.int64)
            record_bytes = _ROW_BYTES * some.rows + some.dst_bytes + _RECORD_BYTES
            is_train = rule.is_train(some)
            for split, inside in ((TRAIN, is_train), (TEST, ~is_train)):
                sizes[split] += np.bincount(bucket[inside], record_bytes[inside], BUCKETS)
                counts[split] += int(inside.sum())
    shard_bytes = shard_bytes_for(int(sum(size.sum() for size in sizes.values())))
    shards = [
        shard
        for split, size in sizes.items()
        if counts[split]
        for shard in cut_shards(split, Curve.of_buckets(size), 0, RING, shard_bytes)
    ]
    return Plan(rule, tuple(shards))


_PROBE = np.dtype([("position", "<u8"), ("rows", "<i8"), ("dst_bytes", "<i8"), ("src", "S48")])


def _packed(probes: Probes) -> NDArray[np.void]:
    packed = np.zeros(len(probes.hashes), _PROBE)
    packed["position"], packed["src"] = probes.hashes, probes.addresses
    packed["rows"], packed["dst_bytes"] = probes.rows, probes.dst_bytes
    return packed


def _pieces(scratch: Scratch) -> Iterator[Probes]:
    step = _PIECE_PROBES * _PROBE.itemsize
    for start in range(0, scratch.bytes, step):
        piece = np.empty(min(step, scratch.bytes - start) // _PROBE.itemsize, _PROBE)
        scratch.read_into(piece, start)
        yield Probes(piece["position"], piece["src"], piece["rows"], piece["dst_bytes"])


def _address_of_rank(scratch: Scratch, rank: int) -> str:
    """Return the address before which there are `rank` others in text order.

    Two characters are decided in each pass, until what is left can be sorted.
    """
    pairs: list[int] = []
    left = scratch.bytes // _PROBE.itemsize
    while left > _SORTED_ADDRESSES:
        counts = np.zeros(1 << 16, np.int64)
        for addresses in _beginning(scratch, pairs):
            counts += np.bincount(_pairs(addresses)[:, len(pairs)], minlength=1 << 16)
        ends = np.cumsum(counts)
        pairs.append(int(np.searchsorted(ends, rank, "right")))
        left = int(counts[pairs[-1]])
        rank -= int(ends[pairs[-1]]) - left
    return str(np.sort(np.concatenate(list(_beginning(scratch, pairs))))[rank].decode())


def _beginning(scratch: Scratch, pairs: Sequence[int]) -> Iterator[NDArray[np.bytes_]]:
    for some in _pieces(scratch):
        addresses = np.ascontiguousarray(some.addresses)
        yield addresses[(_pairs(addresses)[:, : len(pairs)] == np.array(pairs, np.int64)).all(axis=1)]


def _pairs(addresses: NDArray[np.bytes_]) -> NDArray[np.uint16]:
    return addresses.view(">u2").reshape(len(addresses), -1)
