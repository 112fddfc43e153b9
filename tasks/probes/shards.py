"""Merge the probes of all runs, split them, and cut them into shards.

Shards are cut by computed bytes in the order of the probes' hashes, so neither the number of runs nor the portions
in which they are gathered decides where a shard ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.probes import TEST, TRAIN, ProbeSplit
from tasks.inputs.sizing import part_size
from tasks.probes.rows.addresses import train_end
from tasks.probes.scatter import refuse_collisions
from tasks.probes.spill import PROBES_SCHEMA

_SMALLEST_SHARD_BYTES = 64 << 20
_SHARDS = 96
_ROW_BYTES = 17
# Frames and padding of a record.
_RECORD_BYTES = 1200
_LARGEST_HASH = 2**64 - 1
_HELD_PROBES = 1 << 18


@dataclass(frozen=True)
class Probes:
    """Hold distinct probes in the order of their hashes.

    Attributes:
        hashes: uint64[p]; `addresses`: large_string[p].
        rows: int64[p], numbers of measurements; `dst_bytes`: int64[p], bytes of their destination addresses.
    """

    hashes: NDArray[np.uint64]
    addresses: pa.LargeStringArray
    rows: NDArray[np.int64]
    dst_bytes: NDArray[np.int64]

    def record_bytes(self) -> NDArray[np.int64]:
        """Estimate the uncompressed bytes of each probe: int64[p]."""
        return _ROW_BYTES * self.rows + self.dst_bytes + _RECORD_BYTES


def merge_probes(tables: Iterable[pa.RecordBatch]) -> Probes:
    """Merge the probes of all runs, and sum their rows and bytes.

    Memory stays close to that of the distinct probes, however many runs they are in.

    Raises:
        WorkError: `hash_collision`: two probes have the same hash.
    """
    merged = pa.Table.from_batches([], PROBES_SCHEMA)
    held: list[pa.RecordBatch] = []
    rows = 0
    for table in tables:
        held.append(table)
        rows += table.num_rows
        if rows > max(_HELD_PROBES, merged.num_rows):
            merged, held, rows = _merge([*merged.to_batches(), *held]), [], 0
    merged = _merge([*merged.to_batches(), *held]).sort_by("hash")
    hashes: NDArray[np.uint64] = merged["hash"].to_numpy()
    refuse_collisions(hashes)
    addresses = merged["src_addr"].cast(pa.large_string()).combine_chunks()
    return Probes(hashes, addresses, merged["rows"].to_numpy(), merged["dst_bytes"].to_numpy())


def _merge(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    table = pa.Table.from_batches(batches, PROBES_SCHEMA)
    sums = table.group_by(["hash", "src_addr"]).aggregate([("rows", "sum"), ("dst_bytes", "sum")])
    return sums.rename_columns({"rows_sum": "rows", "dst_bytes_sum": "dst_bytes"}).cast(PROBES_SCHEMA)


@dataclass(frozen=True)
class SplitRule:
    """Decide which split a probe is in.

    Attributes:
        train_end: for a split by hash: probes with a hash below this are train.
        first_test: for a sorted split: addresses from this one on, in text order, are test; else `None`.
    """

    train_end: int
    first_test: str | None

    def is_train(self, hashes: NDArray[np.uint64], addresses: pa.Array) -> NDArray[np.bool_]:
        """Return which probes are in train: bool[p]."""
        if self.first_test is None:
            if self.train_end > _LARGEST_HASH:
                return np.ones(len(hashes), dtype=bool)
            return hashes < np.uint64(self.train_end)
        import pyarrow.compute as pc

        below = pc.less(addresses, pa.scalar(self.first_test, addresses.type))
        return np.asarray(below.to_numpy(zero_copy_only=False), dtype=bool)


def split_rule(split: ProbeSplit, train_ratio: float, probes: Probes) -> SplitRule:
    """Return the rule for these probes.

    A `sorted` split puts the first `int(train_ratio * p)` addresses in text order into train.
    """
    if split is ProbeSplit.HASH:
        return SplitRule(train_end(train_ratio), None)
    import pyarrow.compute as pc

    count = int(train_ratio * len(probes.hashes))
    if count == len(probes.hashes):
        return SplitRule(_LARGEST_HASH + 1, None)
    order = pc.sort_indices(probes.addresses)
    return SplitRule(0, probes.addresses[order[count].as_py()].as_py())


@dataclass(frozen=True)
class ShardRange:
    """Define one shard: the probes of a split whose hashes lie in a range.

    Attributes:
        first_hash, last_hash: the range, both included.
        probes, rows: how many probes and measurements it contains.
    """

    split: str
    first_hash: int
    last_hash: int
    probes: int
    rows: int


def shard_bytes_for(total_bytes: int) -> int:
    """Return how many bytes a shard may span: the smallest 64 MiB * 2**k such that 96 shards hold everything."""
    return part_size(total_bytes, _SMALLEST_SHARD_BYTES, _SHARDS)


def cut_shards(probes: Probes, rule: SplitRule, shard_bytes: int) -> list[ShardRange]:
    """Cut shards of about equal size, train first; a split without probes has none."""
    is_train = rule.is_train(probes.hashes, probes.addresses)
    return [
        shard
        for split, members in ((TRAIN, np.flatnonzero(is_train)), (TEST, np.flatnonzero(~is_train)))
        for shard in _cut_split(split, members, probes, shard_bytes)
    ]


def _cut_split(split: str, members: NDArray[np.int64], probes: Probes, shard_bytes: int) -> list[ShardRange]:
    sizes = probes.record_bytes()[members]
    ends = np.cumsum(sizes)
    if not len(ends):
        return []
    shards = -(-int(ends[-1]) // shard_bytes)
    # A probe belongs to the shard in which its first byte lies.
    number = (ends - sizes) * shards // ends[-1]
    edges = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), len(members)]
    plans = []
    for low, high in pairwise(edges):
        first, last = probes.hashes[members[low]], probes.hashes[members[high - 1]]
        rows = int(probes.rows[members[low:high]].sum())
        plans.append(ShardRange(split, int(first), int(last), high - low, rows))
    return plans
