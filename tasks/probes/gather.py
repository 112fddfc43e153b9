"""The second pass: the measurements of a range of probes, collected from all runs, as records of one shard.

A shard is made in portions of consecutive probes, each small enough to be held; records do not depend on where a
portion ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.errors import IntegrityError
from schemas.probes import TRAIN
from schemas.run import FileRecord, Receipt, RowLedger
from tasks.probes.arrayrecord_writer import ShardWriter
from tasks.probes.plan import Probes, ShardPlan, SplitRule, cut_portions, merge_probes
from tasks.probes.records import Block, block_of, cut_evenly, encode_record, measurement_pieces
from tasks.probes.report import ShardCounts
from tasks.probes.sorting import stable_order, time_order
from tasks.probes.spill import PROBES_SCHEMA, RunRef, SpilledRun, open_run
from tasks.store.layout import stage_folder


@dataclass(frozen=True)
class GatherWork:
    """Some shards.

    Attributes:
        runs: every sorted run, in input order.
        rule: which probes of a shard's range are in its split.
        options: of the ArrayRecord writer.
        portion_rows: measurements held at once; a single probe may have more.
    """

    task: ClassVar[str] = "gather"
    part: ClassVar[int] = 0
    output_dir: str
    stage: str
    runs: tuple[RunRef, ...]
    shards: tuple[ShardPlan, ...]
    rule: SplitRule
    max_record_bytes: int
    deduplicate: bool
    options: str
    portion_rows: int


def gather_shards(work: GatherWork) -> Receipt:
    """Write the shards of `work` into its stage folder.

    Raises:
        IntegrityError: a run is damaged, or a shard did not get the rows it was planned to.
        MissingExtraError: array_record is not installed.
        StorageError: a shard cannot be written.
    """
    root = Path(work.output_dir)
    records: list[FileRecord] = []
    counts: list[ShardCounts] = []
    for number, shard in enumerate(work.shards):
        path = stage_folder(root, work.stage) / f"part-{number:06d}.arrayrecord"
        found = ShardCounts(split=shard.split)
        with ShardWriter(path, work.options) as writer:
            for record in _records(work, shard, found):
                writer.add(record)
        if (found.probes, found.measurements + found.duplicates) != (shard.probes, shard.rows):
            raise IntegrityError(
                f"{shard.rows} rows of {shard.probes} probes were planned, {found.measurements} and "
                f"{found.duplicates} duplicates of {found.probes} found",
                code="totals",
                where=str(path),
            )
        records.append(writer.record(root))
        counts.append(found)
    rows = sum(shard.rows for shard in work.shards)
    duplicates = sum(found.duplicates for found in counts)
    return Receipt(
        task=work.task,
        stage=work.stage,
        part=work.part,
        files=tuple(records),
        ledger=RowLedger(rows_in=rows, rows_used=rows - duplicates, duplicates=duplicates),
        statistics={"shards": [found.as_dict() for found in counts]},
    )


def _records(work: GatherWork, shard: ShardPlan, counts: ShardCounts) -> Iterator[bytes]:
    root = Path(work.output_dir)
    runs = [open_run(root, ref) for ref in work.runs]
    probes = _probes_of(runs, shard, work.rule)
    for low, high in cut_portions(probes.rows, work.portion_rows):
        portion = Probes(
            probes.hashes[low:high],
            probes.addresses.slice(low, high - low),
            probes.rows[low:high],
            probes.dst_bytes[low:high],
        )
        block, starts, duplicates = collect(runs, portion, work.deduplicate)
        counts.duplicates += duplicates
        yield from _encode(block, starts, portion.addresses.to_pylist(), work.max_record_bytes, counts)


def _probes_of(runs: Sequence[SpilledRun], shard: ShardPlan, rule: SplitRule) -> Probes:
    tables = []
    for run in runs:
        low, high = _range(run, shard.first_hash, shard.last_hash)
        columns = [
            pa.array(run.hashes[low:high]),
            run.addresses.slice(low, high - low),
            pa.array(np.diff(run.starts[low : high + 1])),
            pa.array(run.dst_bytes[low:high]),
        ]
        tables.append(pa.record_batch(columns, schema=PROBES_SCHEMA))
    probes = merge_probes(tables)
    inside = rule.is_train(probes.hashes, probes.addresses) == (shard.split == TRAIN)
    if inside.all():
        return probes
    return Probes(
        probes.hashes[inside],
        probes.addresses.filter(pa.array(inside)),
        probes.rows[inside],
        probes.dst_bytes[inside],
    )


def _range(run: SpilledRun, first_hash: int, last_hash: int) -> tuple[int, int]:
    """The probes of a run whose hashes lie in a range, both ends included."""
    low = np.searchsorted(run.hashes, np.uint64(first_hash), side="left")
    high = np.searchsorted(run.hashes, np.uint64(last_hash), side="right")
    return int(low), int(high)


def collect(
    runs: Sequence[SpilledRun], probes: Probes, deduplicate: bool
) -> tuple[Block, NDArray[np.int64], int]:
    """The measurements of consecutive probes, by probe and time, ties in input order.

    Returns:
        The block; int64[p + 1], where each probe starts in it; how many duplicates were left out.
    """
    owners: list[NDArray[np.int32]] = []
    times: list[NDArray[np.int64]] = []
    versions: list[NDArray[np.int8]] = []
    rtts: list[NDArray[np.float32]] = []
    texts: list[pa.Array] = []
    codes: list[NDArray[np.int32]] = []
    held = 0
    for run in runs:
        low, high = _range(run, int(probes.hashes[0]), int(probes.hashes[-1]))
        if low == high:
            continue
        ranks = np.searchsorted(probes.hashes, run.hashes[low:high])
        ours = probes.hashes[ranks] == run.hashes[low:high]
        lengths = np.diff(run.starts[low : high + 1])
        first, last = int(run.starts[low]), int(run.starts[high])
        rows = run.map_rows().slice(first, last - first)
        columns = [rows.column(0).view(pa.int64()), rows.column(1).indices, rows.column(2), rows.column(3)]
        time, code, version, rtt = (column.to_numpy() for column in columns)
        owner = np.repeat(ranks.astype(np.int32), lengths)
        if not ours.all():
            kept = np.repeat(ours, lengths)
            time, code, version, rtt, owner = time[kept], code[kept], version[kept], rtt[kept], owner[kept]
        dictionary, code = _used(rows.column(1).dictionary, code)
        owners.append(owner)
        times.append(time)
        versions.append(version)
        rtts.append(rtt)
        texts.append(dictionary)
        codes.append(code + held)
        held += len(dictionary)
    owner, time = np.concatenate(owners), np.concatenate(times)
    # A busy probe is one portion, however many rows it has: nothing is held twice for longer than needed.
    del owners, times
    order = stable_order(owner, len(probes.hashes))
    owner, time = owner[order], time[order]
    late = time_order(owner, time)
    if late is not None:
        order, time = order[late], time[late]
    code, version, rtt = (
        np.concatenate(codes)[order],
        np.concatenate(versions)[order],
        np.concatenate(rtts)[order],
    )
    text = pa.chunked_array(texts).cast(pa.large_string()).combine_chunks()
    duplicates = 0
    if deduplicate:
        kept = ~repeated(owner, time, _same_code(text)[code], rtt)
        duplicates = len(kept) - int(kept.sum())
        owner, time, code, version, rtt = owner[kept], time[kept], code[kept], version[kept], rtt[kept]
    starts = np.zeros(len(probes.hashes) + 1, dtype=np.int64)
    np.cumsum(np.bincount(owner, minlength=len(probes.hashes)), out=starts[1:])
    return block_of(time, text.take(pa.array(code)), version, rtt), starts, duplicates


def _used(dictionary: pa.Array, codes: NDArray[np.int32]) -> tuple[pa.Array, NDArray[np.int32]]:
    """A dictionary no larger than its use, so that memory follows the rows held and not the run."""
    if len(dictionary) <= len(codes):
        return dictionary, codes
    used, again = np.unique(codes, return_inverse=True)
    return dictionary.take(pa.array(used)), again.astype(np.int32)


def _same_code(texts: pa.Array) -> NDArray[np.int32]:
    """int32[n]: equal for equal texts."""
    codes: NDArray[np.int32] = texts.dictionary_encode().indices.to_numpy()
    return codes


def repeated(
    owners: NDArray[np.int32], times: NDArray[np.int64], dst: NDArray[np.int32], rtts: NDArray[np.float32]
) -> NDArray[np.bool_]:
    """Which measurements equal an earlier one of their probe in all columns (a version follows from its address).

    >>> one = np.array([1, 1, 1], np.int32)
    >>> repeated(one, np.array([7, 7, 7]), np.array([0, 1, 0], np.int32), np.ones(3, np.float32)).tolist()
    [False, False, True]
    """
    columns: list[NDArray[Any]] = [rtts.view(np.int32), dst, times, owners]
    # Stable, so the first in input order stays.
    order = np.lexsort(columns)
    same = np.ones(max(len(order) - 1, 0), dtype=bool)
    for column in columns:
        ordered = column[order]
        same &= ordered[1:] == ordered[:-1]
    found = np.zeros(len(order), dtype=bool)
    found[order[1:]] = same
    return found


def _encode(
    block: Block, starts: NDArray[np.int64], addresses: list[str], max_bytes: int, counts: ShardCounts
) -> Iterator[bytes]:
    counts.add_block(block, starts)
    edges = starts.tolist()
    for address, (start, stop) in zip(addresses, pairwise(edges), strict=True):
        cuts = cut_evenly(block, start, stop, max_bytes)
        for part, (low, high) in enumerate(pairwise(cuts)):
            measurements = measurement_pieces(block, low, high)
            counts.add_record(sum(map(len, measurements)))
            first, last = int(block.times[low]), int(block.times[high - 1])
            yield encode_record(address, measurements, high - low, first, last, part, len(cuts) - 1)
