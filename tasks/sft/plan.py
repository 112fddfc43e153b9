"""The pack plan of one data set and split: which sequences fill which bin of which shard.

The plan is a few arrays in its stage folder. Any number of workers can write shards from it, in any order:

==================  ====================  ========================================================
file                content               meaning
==================  ====================  ========================================================
`item_spool.npy`    int32[items]          index of the spool that has the sequence
`item_start.npy`    int64[items]          its first token in that spool
`item_length.npy`   int32[items]          stored tokens taken from the spool, padding excluded
`bin_offsets.npy`   int64[bins + 1]       CSR over `bin_items`
`bin_items.npy`     int64[items]          item numbers, grouped by bin
`shard_bins.npy`    int64[shards + 1]     the bins of each shard
==================  ====================  ========================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from schemas.run import Receipt, RowLedger
from schemas.sft import Count, Overflow, PackConfig
from tasks.packing.arrays import ranges, repeated
from tasks.packing.bins import pack
from tasks.run.contract import Job
from tasks.run.layout import stage_folder
from tasks.run.rejects import REJECTS, RejectWriter
from tasks.sft.splits import in_split
from tasks.sft.spool import Spool, open_spools
from tasks.storage.arrays import write_array

# What the overflow rule did to sequences longer than the pack size; `tokens_cut` are in no bin.
OVERFLOW_COUNTS = ("tokens_cut", "sequences_truncated", "sequences_split", "sequences_dropped")
_ARRAYS = ("item_spool", "item_start", "item_length", "bin_offsets", "bin_items", "shard_bins")


@dataclass(frozen=True, kw_only=True)
class PlanJob(Job):
    """One data set and split.

    Attributes:
        spool_stages: stage hashes of the data set's spools, in part order.
        source_files: for each spool, the input files its rows name.
        low, high: the split's interval of [0, 1).
    """

    task: ClassVar[str] = "plan"
    spool_stages: tuple[str, ...]
    source_files: tuple[tuple[str, ...], ...]
    low: float
    high: float
    seed: int
    deduplicate: bool
    pack: PackConfig
    shard_tokens: int
    label: str = ""


@dataclass
class _Items:
    """The sequences to pack: int32[n], int64[n], int64[n]."""

    spool: NDArray[np.int32]
    start: NDArray[np.int64]
    length: NDArray[np.int64]


def longest_stored(pack_config: PackConfig) -> int:
    """Return the length of the longest sequence that fits a bin, in stored tokens including padding.

    >>> longest_stored(PackConfig(size=4096)), longest_stored(PackConfig(size=4096, count="stored"))
    (4097, 4096)
    """
    room = pack_config.size - (0 if pack_config.count is Count.RUNTIME else 1)
    multiple = pack_config.pad_to_multiple
    return room // multiple * multiple + 1


def padded_length(lengths: NDArray[np.int64], multiple: int) -> NDArray[np.int64]:
    """Compute stored lengths after padding the runtime length, L - 1, up to a multiple.

    >>> padded_length(np.array([2, 9, 10]), 8).tolist()
    [9, 9, 17]
    """
    return -(-(lengths - 1) // multiple) * multiple + 1


def plan_packs(job: PlanJob) -> Receipt:
    """Choose the split's sequences, pack them, and cut the bins into shards.

    Raises:
        IntegrityError: spool files disagree with each other.
        StorageError: the plan cannot be written.
    """
    root = job.root
    folder = job.folder
    with (
        open_spools([stage_folder(root, stage) for stage in job.spool_stages]) as spools,
        RejectWriter(folder / REJECTS) as rejects,
    ):
        items, ledger, overflow = _select(job, spools, rejects)
        arrays, statistics = _pack(job, items)
        records = [write_array(folder / f"{name}.npy", arrays[name], root) for name in _ARRAYS]
        records += rejects.finish(root)
    return job.receipt(
        records,
        ledger=ledger,
        statistics={**statistics, **overflow},
    )


def _select(
    job: PlanJob, spools: Sequence[Spool], rejects: RejectWriter
) -> tuple[_Items, RowLedger, dict[str, int]]:
    """Choose the sequences of this split by deduplication and the overflow rule, and account for its rows."""
    digests = np.concatenate([spool.row_digest for spool in spools])
    duplicate = repeated(*digests.T) if job.deduplicate else np.zeros(len(digests), dtype=bool)
    chosen: list[_Items] = []
    counts: Counter[str] = Counter()
    rejected: Counter[str] = Counter()
    overflow: Counter[str] = Counter()
    first = 0
    for index, spool in enumerate(spools):
        num_rows = len(spool.row_number)
        inside = in_split(spool.row_group, job.seed, job.low, job.high)
        again = duplicate[first : first + num_rows] & inside
        first += num_rows
        keep = inside & ~again
        items = _fit(job.pack, index, spool, keep[spool.seq_row], overflow)
        used = np.zeros(num_rows, dtype=bool)
        used[items.pop("row")] = True
        lost = keep & ~used
        reason = "over_long" if job.pack.overflow is Overflow.DROP else "no_trained_token_in_pack_size"
        for row in np.flatnonzero(lost).tolist():
            name = job.source_files[index][int(spool.row_file[row])]
            rejects.add(name, int(spool.row_number[row]), reason, f"pack.size is {job.pack.size}")
        rejected[reason] += int(lost.sum())
        counts.update(rows_in=int(inside.sum()), duplicates=int(again.sum()), rows_used=int(used.sum()))
        chosen.append(_Items(**items))
    ledger = RowLedger(**counts, rejected={k: n for k, n in rejected.items() if n})
    merged = _Items(
        np.concatenate([items.spool for items in chosen]),
        np.concatenate([items.start for items in chosen]),
        np.concatenate([items.length for items in chosen]),
    )
    return merged, ledger, {name: overflow[name] for name in OVERFLOW_COUNTS}


def _fit(
    config: PackConfig, index: int, spool: Spool, keep: NDArray[np.bool_], overflow: Counter[str]
) -> dict[str, Any]:
    """Apply the overflow rule to the kept sequences of one spool."""
    longest = longest_stored(config)
    sequences = np.flatnonzero(keep)
    start = spool.offsets[sequences]
    length = spool.offsets[sequences + 1] - start
    row = spool.seq_row[sequences]
    over = length > longest
    if over.any():
        before = int(length.sum())
        if config.overflow is Overflow.DROP:
            origin, good = np.arange(len(over)), ~over
        else:
            start, length, origin = _cut(start, length, over, longest, config.overflow)
            cut = over[origin]
            good = ~cut
            good[cut] = _has_trained(spool, start[cut], length[cut])
        start, length, origin = start[good], length[good], origin[good]
        left = np.zeros(len(over), dtype=bool)
        left[origin] = True
        overflow["sequences_dropped"] += int((~left).sum())
        if config.overflow is not Overflow.DROP:
            how = "truncated" if config.overflow is Overflow.TRUNCATE else "split"
            overflow[f"sequences_{how}"] += int((over & left).sum())
        row = row[origin]
        # Sequences abut in the spool; only chunks of one sequence overlap, by a token that was not cut.
        shared = int((start[1:] < start[:-1] + length[:-1]).sum())
        overflow["tokens_cut"] += before - (int(length.sum()) - shared)
    return {"spool": np.full(len(start), index, np.int32), "start": start, "length": length, "row": row}


def _cut(
    start: NDArray[np.int64],
    length: NDArray[np.int64],
    over: NDArray[np.bool_],
    longest: int,
    overflow: Overflow,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Truncate long sequences to `longest`, or split them into chunks; the last array says of which sequence.

    Chunks overlap by one token: a chunk cannot train the label of its own first token, so without the overlap
    that label would be lost; with it every label is trained exactly once.
    """
    if overflow is Overflow.TRUNCATE:
        return start, np.minimum(length, longest), np.arange(len(start))
    step = longest - 1
    chunks = np.where(over, -(-(length - 1) // step), 1)
    within = ranges(0, chunks)
    chunk_start = np.repeat(start, chunks) + within * step
    chunk_length = np.minimum(np.repeat(length, chunks) - within * step, longest)
    return chunk_start, chunk_length, np.repeat(np.arange(len(start)), chunks)


def _has_trained(spool: Spool, start: NDArray[np.int64], length: NDArray[np.int64]) -> NDArray[np.bool_]:
    mask = spool.loss_mask
    pairs = zip(start.tolist(), length.tolist(), strict=True)
    # The last entry of a cut sequence has no label; gathering sets it to 0.
    return np.fromiter((mask[s : s + n - 1].any() for s, n in pairs), dtype=bool, count=len(start))


def _pack(job: PlanJob, items: _Items) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    config = job.pack
    stored = padded_length(items.length, config.pad_to_multiple)
    runtime = stored - 1
    cost = runtime if config.count is Count.RUNTIME else stored
    # The stage hash depends on seed and content: each split of each data set draws from its own stream.
    packing = pack(cost, config.size, order=config.order.value, seed=int(job.stage, 16))
    bin_items = packing.bin_items.astype(np.int64)
    per_bin = np.diff(packing.bin_offsets)
    shard_bins = _shards(_bin_sums(stored, bin_items, packing.bin_offsets), job.shard_tokens)
    arrays: dict[str, NDArray[Any]] = {
        "item_spool": items.spool,
        "item_start": items.start,
        "item_length": items.length.astype(np.int32),
        "bin_offsets": packing.bin_offsets.astype(np.int64),
        "bin_items": bin_items,
        "shard_bins": shard_bins,
    }
    runtime_bins = _bin_sums(runtime, bin_items, packing.bin_offsets)
    bins = len(per_bin)
    statistics = {
        "bins": bins,
        "shards": len(shard_bins) - 1,
        "sequences": len(stored),
        "tokens": int(stored.sum()),
        "padding_tokens": int((stored - items.length).sum()),
        "shard_bins": shard_bins.tolist(),
        # The names trainers read; all lengths are runtime lengths.
        "max_samples_per_bin": int(per_bin.max(initial=0)),
        "dataset_max_seqlen": int(runtime.max(initial=0)),
        "min_packed_seqlen": int(runtime_bins.min(initial=config.size)) if bins else 0,
        "packing_factor": round(len(stored) / bins, 4) if bins else 0.0,
        "packing_efficiency": round(100 * int(runtime.sum()) / (bins * config.size), 4) if bins else 0.0,
        "pack_size": config.size,
    }
    return arrays, statistics


def _bin_sums(
    values: NDArray[np.int64], bin_items: NDArray[np.int64], bin_offsets: NDArray[np.int64]
) -> NDArray[np.int64]:
    totals = np.concatenate((np.zeros(1, np.int64), np.cumsum(values[bin_items])))
    return np.diff(totals[bin_offsets])


def _shards(bin_tokens: NDArray[np.int64], shard_tokens: int) -> NDArray[np.int64]:
    """Cut bins into shards; the bin that brings a shard to `shard_tokens` is its last.

    >>> _shards(np.array([5, 5, 5, 5, 5]), 10).tolist()
    [0, 2, 4, 5]
    """
    totals = np.cumsum(bin_tokens)
    cuts = [0]
    while cuts[-1] < len(totals):
        done = int(totals[cuts[-1] - 1]) if cuts[-1] else 0
        cuts.append(min(int(np.searchsorted(totals, done + shard_tokens)) + 1, len(totals)))
    return np.array(cuts, dtype=np.int64)
