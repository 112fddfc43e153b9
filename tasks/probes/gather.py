"""Run the second pass: collect the measurements of a range of probes from all runs, and write the records of a shard.

A shard is built in portions of consecutive probes, each small enough for memory; records do not depend on where a
portion ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.errors import IntegrityError
from schemas.probes import TRAIN
from schemas.run import FileRecord, Receipt, RowLedger
from tasks.packing.arrays import repeated, stable_order
from tasks.probes.counts import ShardCounts
from tasks.probes.records.encode import Block, Records, block_of, encode_records
from tasks.probes.records.writer import ShardWriter
from tasks.probes.rows.sorting import cut_ranges, time_order
from tasks.probes.shards import Probes, ShardRange, SplitRule, merge_probes
from tasks.probes.spill import OpenSpill, SpillRef, open_spill
from tasks.run.contract import Job
from tasks.run.memory import release_memory

# Targets of all runs together, about 20 MB.
_SHARED_TARGETS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class GatherJob(Job):
    """Write some shards.

    Attributes:
        runs: every sorted run, in input order.
        rule: decides which probes of a shard's range are in its split.
        options: options of the ArrayRecord writer.
        portion_rows: most measurements in memory at once; a single probe may have more.
    """

    task: ClassVar[str] = "gather"
    runs: tuple[SpillRef, ...]
    shards: tuple[ShardRange, ...]
    rule: SplitRule
    max_record_bytes: int
    deduplicate: bool
    options: str
    portion_rows: int


def gather_shards(job: GatherJob) -> Receipt:
    """Write the shards of a job into its stage folder.

    Raises:
        IntegrityError: a run is damaged, or a shard did not get the rows that were planned for it.
        MissingExtraError: array_record is not installed.
        StorageError: a shard cannot be written.
    """
    release_memory()
    root = job.root
    records: list[FileRecord] = []
    counts: list[ShardCounts] = []
    for number, shard in enumerate(job.shards):
        path = job.folder / f"part-{number:06d}.arrayrecord"
        found = ShardCounts(split=shard.split)
        with ShardWriter(path, job.options) as writer:
            for some in _records(job, shard, found):
                writer.add(some.sizes, some.data)
        if (found.probes, found.measurements + found.duplicates) != (shard.probes, shard.rows):
            raise IntegrityError(
                f"{shard.rows} rows of {shard.probes} probes were planned, but {found.measurements} measurements "
                f"and {found.duplicates} duplicates of {found.probes} probes were found",
                code="totals",
                where=str(path),
            )
        records.append(writer.record(root))
        counts.append(found)
    rows = sum(shard.rows for shard in job.shards)
    duplicates = sum(found.duplicates for found in counts)
    return job.receipt(
        records,
        ledger=RowLedger(rows_in=rows, rows_used=rows - duplicates, duplicates=duplicates),
        statistics={"shards": [found.as_dict() for found in counts]},
    )


def _records(job: GatherJob, shard: ShardRange, counts: ShardCounts) -> Iterator[Records]:
    root = job.root
    runs = [open_spill(root, ref, shard.first_hash, shard.last_hash) for ref in job.runs]
    runs = [run for run in runs if len(run.hashes)]
    probes = _probes_of(runs, shard, job.rule)
    shared = share_targets(runs)
    for low, high in cut_ranges(probes.rows, job.portion_rows):
        portion = Probes(
            probes.hashes[low:high],
            probes.addresses.slice(low, high - low),
            probes.rows[low:high],
            probes.dst_bytes[low:high],
        )
        block, duplicates = collect(runs, portion, shared, job.deduplicate)
        counts.duplicates += duplicates
        counts.add_block(block)
        for records in encode_records(block, job.max_record_bytes):
            counts.add_records(records.blob_sizes)
            yield records


def _probes_of(runs: Sequence[OpenSpill], shard: ShardRange, rule: SplitRule) -> Probes:
    probes = merge_probes(run.probes for run in runs)
    inside = rule.is_train(probes.hashes, probes.addresses) == (shard.split == TRAIN)
    if inside.all():
        return probes
    return Probes(
        probes.hashes[inside],
        probes.addresses.filter(pa.array(inside)),
        probes.rows[inside],
        probes.dst_bytes[inside],
    )


@dataclass(frozen=True)
class SharedTargets:
    """Hold the destination addresses of several runs, each address once.

    Attributes:
        texts: large_string[t].
        places: for each run, int32[targets of the run]: their indices into `texts`.
    """

    texts: pa.LargeStringArray
    places: list[NDArray[np.int32]]


def share_targets(runs: Sequence[OpenSpill]) -> SharedTargets | None:
    """Read the targets of all runs; return `None` if they do not fit, so that each portion must read its own."""
    if not 0 < sum(run.num_targets for run in runs) <= _SHARED_TARGETS:
        return None
    encoded = [
        pa.DictionaryArray.from_arrays(
            pa.array(np.arange(run.num_targets, dtype=np.int32)), run.read_targets()
        )
        for run in runs
    ]
    unified = pa.chunked_array(encoded).unify_dictionaries()
    texts = unified.chunk(0).dictionary.cast(pa.large_string())
    return SharedTargets(texts, [chunk.indices.to_numpy() for chunk in unified.chunks])


def collect(
    runs: Sequence[OpenSpill], probes: Probes, shared: SharedTargets | None, deduplicate: bool
) -> tuple[Block, int]:
    """Collect the measurements of consecutive probes, by probe and time, ties in input order.

    Args:
        shared: the targets of `runs`, if they fit into memory.

    Returns:
        The block, and how many duplicates were left out.
    """
    owners: list[NDArray[np.int32]] = []
    times: list[NDArray[np.int64]] = []
    rtts: list[NDArray[np.float32]] = []
    texts: list[pa.Array] = []
    codes: list[NDArray[np.int32]] = []
    held = 0
    # Read from each run the one slice that covers the hashes of these probes.
    for number, run in enumerate(runs):
        low = int(np.searchsorted(run.hashes, probes.hashes[0], side="left"))
        high = int(np.searchsorted(run.hashes, probes.hashes[-1], side="right"))
        if low == high:
            continue
        ranks = np.searchsorted(probes.hashes, run.hashes[low:high])
        ours = probes.hashes[ranks] == run.hashes[low:high]
        lengths = np.diff(run.starts[low : high + 1])
        time, code, rtt = run.read_rows(low, high)
        owner = np.repeat(ranks.astype(np.int32), lengths)
        # A slice also covers probes of the other split, whose hashes lie between ours.
        if not ours.all():
            kept = np.repeat(ours, lengths)
            time, code, rtt, owner = time[kept], code[kept], rtt[kept], owner[kept]
        owners.append(owner)
        times.append(time)
        rtts.append(rtt)
        # Number the targets over all runs, so that equal addresses can be compared by number.
        if shared is not None:
            codes.append(shared.places[number][code])
            continue
        dictionary, code = _used(run.read_targets(), code)
        texts.append(dictionary)
        codes.append(code + held)
        held += len(dictionary)
    # A busy probe is one portion, however many rows it has, so arrays are freed as soon as they are copied.
    owner, time, code, rtt = (_joined(parts) for parts in (owners, times, codes, rtts))
    # A stable sort by probe keeps input order, which decides ties of time.
    if len(probes.hashes) > 1:
        order = stable_order(owner, len(probes.hashes))
        owner, time, code, rtt = owner[order], time[order], code[order], rtt[order]
        del order
    # Only probes whose rows are late are sorted by time: measurements mostly arrive in time order.
    late = time_order(owner, time)
    if late is not None:
        time, code, rtt = time[late], code[late], rtt[late]
    text = shared.texts if shared else pa.chunked_array(texts).cast(pa.large_string()).combine_chunks()
    duplicates = 0
    # Rows are duplicates if probe, time, target and the bits of the round trip are equal.
    if deduplicate:
        kept = ~repeated(owner, time, _same_code(text)[code], rtt.view(np.int32))
        duplicates = len(kept) - int(kept.sum())
        owner, time, code, rtt = owner[kept], time[kept], code[kept], rtt[kept]
    starts = np.zeros(len(probes.hashes) + 1, dtype=np.int64)
    np.cumsum(np.bincount(owner, minlength=len(probes.hashes)), out=starts[1:])
    return block_of(probes.addresses.to_pylist(), starts, time, code, text, rtt), duplicates


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Join arrays, and free the parts."""
    joined = np.concatenate(parts)
    parts.clear()
    return joined


def _used(dictionary: pa.Array, codes: NDArray[np.int32]) -> tuple[pa.Array, NDArray[np.int32]]:
    """Shrink a dictionary to its use, so that memory depends on the rows collected and not on the run."""
    if len(dictionary) <= len(codes):
        return dictionary, codes
    used, again = np.unique(codes, return_inverse=True)
    return dictionary.take(pa.array(used)), again.astype(np.int32)


def _same_code(texts: pa.Array) -> NDArray[np.int32]:
    """Return int32[n] with equal numbers for equal texts."""
    codes: NDArray[np.int32] = texts.dictionary_encode().indices.to_numpy()
    return codes
