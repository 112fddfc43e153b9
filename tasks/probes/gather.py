"""Run the second pass: collect the measurements of a range of probes from all runs, and write a shard's records.

A shard is built in portions of consecutive probes, each small enough for memory; a probe that is larger is merged by
time from the runs, a record at a time. Records do not depend on where a portion ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.probes import TRAIN
from schemas.run import Receipt, RowLedger
from tasks.packing.arrays import lengths_to_offsets, repeated, stable_order
from tasks.probes.counts import ShardCounts
from tasks.probes.records.encode import Block, Records, block_of, cut_evenly, encode_part, encode_records
from tasks.probes.records.writer import ShardWriter
from tasks.probes.rows.sorting import cut_ranges, time_order
from tasks.probes.runs.in_time import cut_at, merge_by_time, without_repeated
from tasks.probes.runs.place import RunRef
from tasks.probes.runs.read import Measurements, RunReader
from tasks.probes.runs.windows import Part, Probes, Window, read_windows
from tasks.probes.shards import ShardRange, SplitRule
from tasks.run.contract import Job
from tasks.run.memory import release_memory

SHARD = "part-000000.arrayrecord"
# Ranges read at the same time.
_READERS = 4
# Measurements that one range of each run is read for, about 8 MB: two portions.
_READ_ROWS = 1 << 19


@dataclass(frozen=True, kw_only=True)
class GatherJob(Job):
    """Write a shard.

    Attributes:
        runs: every sorted run, in input order.
        rule: decides which probes of the shard's range are in its split.
        options: options of the ArrayRecord writer.
        portion_rows: most measurements that are sorted and encoded at once.
    """

    task: ClassVar[str] = "gather"
    runs: tuple[RunRef, ...]
    shard: ShardRange
    rule: SplitRule
    max_record_bytes: int
    deduplicate: bool
    options: str
    portion_rows: int


def gather_shard(job: GatherJob) -> Receipt:
    """Write a shard into its stage folder; if no probe lies in its range, there is no file.

    Raises:
        IntegrityError: a run is damaged.
        MissingExtraError: array_record is not installed.
        StorageError: the shard cannot be written.
    """
    release_memory()
    counts = ShardCounts(split=job.shard.split)
    with ThreadPoolExecutor(_READERS) as readers:
        records = _records(job, counts, readers)
        first = next(records, None)
        if first is None:
            return job.receipt([], ledger=RowLedger(rows_in=0, rows_used=0), statistics={"shards": []})
        with ShardWriter(job.folder / SHARD, job.options) as writer:
            for some in chain([first], records):
                counts.add_records(some.blob_sizes)
                writer.add(some.sizes, some.data)
    used = counts.measurements
    ledger = RowLedger(rows_in=used + counts.duplicates, rows_used=used, duplicates=counts.duplicates)
    return job.receipt([writer.record(job.root)], ledger=ledger, statistics={"shards": [counts.as_dict()]})


def _records(job: GatherJob, counts: ShardCounts, readers: Executor) -> Iterator[Records]:
    shard = job.shard
    runs = list(readers.map(lambda ref: RunReader(job.root, ref), job.runs))
    for window in read_windows(runs, shard.low, shard.high, readers):
        probes = window.probes.take(job.rule.is_train(window.probes) == (shard.split == TRAIN))
        for low, high in _read_together(probes.rows, job.portion_rows):
            some = probes.take(slice(low, high))
            if some.rows[0] > job.portion_rows:
                yield from _long(job, window, some, counts)
            else:
                yield from _portions(job, window, some, counts)


def _read_together(rows: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of consecutive probes; one with more than `most` rows is alone."""
    low = 0
    for long in [*np.flatnonzero(rows > most).tolist(), len(rows)]:
        for first, end in cut_ranges(rows[low:long], max(_READ_ROWS, most)):
            yield low + first, low + end
        if long < len(rows):
            yield long, long + 1
        low = long + 1


def _portions(job: GatherJob, window: Window, probes: Probes, counts: ShardCounts) -> Iterator[Records]:
    """Encode consecutive probes, all of which fit into memory, in portions."""
    parts, texts = window.read(probes.hashes[0], probes.hashes[-1])
    for low, high in cut_ranges(probes.rows, job.portion_rows):
        block, duplicates = collect(parts, probes.take(slice(low, high)), texts, job.deduplicate)
        counts.duplicates += duplicates
        counts.add_block(block)
        yield from encode_records(block, job.max_record_bytes)


def _long(job: GatherJob, window: Window, probe: Probes, counts: ShardCounts) -> Iterator[Records]:
    """Encode one probe that does not fit into memory."""
    stretches = window.stretches(probe.hashes[0])

    def merged() -> Iterator[Measurements]:
        found = merge_by_time(stretches, job.portion_rows)
        return without_repeated(found) if job.deduplicate else found

    address = probe.addresses[0].decode()
    rows, dst_bytes = int(probe.rows[0]), int(probe.dst_bytes[0])
    if job.deduplicate:
        lengths = [(len(some.times), int(some.dst_lengths().sum())) for some in merged()]
        rows, dst_bytes = (sum(column) for column in zip(*lengths, strict=True))
        counts.duplicates += int(probe.rows[0]) - rows
    counts.add_probes(np.array([rows]), np.array([":" in address]))
    edges = cut_evenly(
        lambda: (some.dst_lengths() for some in merged()), rows, dst_bytes, job.max_record_bytes
    )
    for part, some in enumerate(cut_at(merged(), edges)):
        counts.failed += int((some.rtts < 0).sum())
        starts = np.array([0, len(some.times)])
        block = block_of(
            [address], starts, some.times, some.codes, some.texts.cast(pa.large_string()), some.rtts
        )
        yield encode_part(block, part, len(edges) - 1)


def collect(
    parts: Sequence[Part], probes: Probes, texts: pa.LargeStringArray, deduplicate: bool
) -> tuple[Block, int]:
    """Collect the measurements of consecutive probes, by probe and time, ties in input order.

    Args:
        parts: what the runs have of these probes, and of others; `texts`: what their codes refer to.

    Returns:
        The block, and how many duplicates were left out.
    """
    owners: list[NDArray[np.int32]] = []
    found: list[Measurements] = []
    for part in parts:
        some = part.between(probes.hashes[0], probes.hashes[-1])
        hashes = some.records["position"]
        ranks = np.searchsorted(probes.hashes, hashes).astype(np.int32)
        owner, measurements = np.repeat(ranks, some.records["length"]), some.measurements
        # A slice also covers probes of the other split, whose hashes lie between ours.
        ours = probes.hashes[ranks] == hashes
        if not ours.all():
            kept = np.repeat(ours, some.records["length"])
            owner, measurements = owner[kept], measurements.filter(kept)
        owners.append(owner)
        found.append(measurements)
    owner = np.concatenate(owners)
    time, code, rtt = (
        np.concatenate([getattr(some, name) for some in found]) for name in ("times", "codes", "rtts")
    )
    # A stable sort by probe keeps input order, which decides ties of time.
    if (owner[1:] < owner[:-1]).any():
        order = stable_order(owner, len(probes.hashes))
        owner, time, code, rtt = owner[order], time[order], code[order], rtt[order]
    # Only probes whose rows are late are sorted by time: measurements mostly arrive in time order.
    late = time_order(owner, time)
    if late is not None:
        time, code, rtt = time[late], code[late], rtt[late]
    duplicates = 0
    # Rows are duplicates if probe, time, target and the bits of the round trip are equal.
    if deduplicate:
        kept = ~repeated(owner, time, code, rtt.view(np.int32))
        duplicates = len(kept) - int(kept.sum())
        owner, time, code, rtt = owner[kept], time[kept], code[kept], rtt[kept]
    starts = lengths_to_offsets(np.bincount(owner, minlength=len(probes.hashes)))
    addresses = [address.decode() for address in probes.addresses.tolist()]
    return block_of(addresses, starts, time, code, texts, rtt), duplicates
