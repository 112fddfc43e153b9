"""Make shards: gather an interval of positions from every spool, deduplicate, fit, pack, and write it.

Every shard is a packing of its own, so any number of workers can make them in any order, and the memory for one does
not depend on how many there are.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from schemas.canonical import canonical_hash
from schemas.errors import ConfigError
from schemas.run import FileRecord, Receipt, RowLedger
from schemas.sft import Count, Overflow, PackConfig, StorageConfig
from tasks.packing.arrays import lengths_to_offsets, ranges
from tasks.packing.bins import Packing, pack
from tasks.run.contract import Job
from tasks.run.layout import stage_folder
from tasks.run.rejects import RejectWriter, rejects_of
from tasks.sft.cut import read_cuts
from tasks.sft.order.fit import OVERFLOW_COUNTS, Pieces, first_rows, fit, padded_length
from tasks.sft.order.interval import Window, duplicates, rows_of, shifted
from tasks.sft.order.positions import rotation, unrotated
from tasks.sft.order.provenance import write_provenance
from tasks.sft.repeats import among, read_repeats
from tasks.sft.shards.bins import Bins
from tasks.sft.shards.shard import ShardMetadata
from tasks.sft.shards.writers import open_writer, shard_name
from tasks.storage.arrays import write_array

# 8 MB of tokens and mask a block: large enough to amortise Python, small enough for many workers.
_BLOCK_TOKENS = 1 << 20

Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class PackJob(Job):
    """Consecutive shards of one data set and split.

    Attributes:
        cut_stage: stage hash of the cuts; spool_stages: those of the spools, in part order.
        repeats_stage: stage hash of the rows to leave out, and repeats_parts: in how many files they are; none if
            each shard finds them itself.
        source_files: for each spool, the input files its rows name.
        packing: hash of what decides the bins, which the storage does not; seeds their order.
        first_shard, end_shard: which shards of the split.
        most_tokens: only the first rows, up to about so many tokens that fit a bin; all if `None`.
        eos_id: the padding token; needed only when `pack.pad_to_multiple` is above 1.
    """

    task: ClassVar[str] = "pack"
    cut_stage: str
    spool_stages: tuple[str, ...]
    source_files: tuple[tuple[str, ...], ...]
    repeats_stage: str = ""
    repeats_parts: int = 0
    split: str
    packing: str
    first_shard: int
    end_shard: int
    most_tokens: int | None = None
    seed: int
    grouped: bool
    deduplicate: bool
    pack: PackConfig
    storage: StorageConfig
    eos_id: int | None
    tokenizer_digest: str
    vocabulary_size: int


def pack_shards(job: PackJob) -> Receipt:
    """Make the shards of `job` in its stage folder.

    Raises:
        ConfigError: padding is requested, but the tokenizer has no end-of-sequence token.
        IntegrityError: a spool is damaged.
        StorageError: a shard cannot be written.
    """
    if job.pack.pad_to_multiple > 1 and job.eos_id is None:
        raise ConfigError(
            f"padding to a multiple of {job.pack.pad_to_multiple} needs an end-of-sequence token, but the "
            "tokenizer has none; set eos_token in its tokenizer_config.json or pad_to_multiple: 1",
            where="pack.pad_to_multiple",
        )
    edges = read_cuts(stage_folder(job.root, job.cut_stage), job.split)[job.first_shard : job.end_shard + 1]
    turn = rotation(job.seed, job.grouped)
    made = _Made()
    with (
        RejectWriter(job.folder / rejects_of(job.part)) as rejects,
        Window(job.root, job.spool_stages, edges, turn, job.folder) as window,
    ):
        for number in range(job.first_shard, job.end_shard):
            shard = number - job.first_shard
            sequences = window.sequences(shard)
            repeats = _repeats(job, unrotated(edges[shard], edges[shard + 1], turn))
            kept, pieces = _choose(job, window, sequences, repeats, rejects, made)
            plan = _plan(job, number, pieces)
            if plan.bins:
                _write(job, number, window, kept, plan, made)
        records = [*made.records, *rejects.finish(job.root)]
    return job.receipt(
        records, ledger=RowLedger.total(made.ledgers), statistics={**made.overflow, "shards": made.shards}
    )


class _Made:
    """The running totals of a job."""

    def __init__(self) -> None:
        self.records: list[FileRecord] = []
        self.ledgers: list[RowLedger] = []
        self.overflow = dict.fromkeys(OVERFLOW_COUNTS, 0)
        self.shards: list[dict[str, int]] = []


def _repeats(job: PackJob, intervals: Sequence[tuple[int, int]]) -> NDArray[Any] | None:
    """Return the rows to leave out, or `None` if equal conversations lie side by side."""
    if not job.repeats_parts:
        return None
    return read_repeats(job.root, job.repeats_stage, job.repeats_parts, intervals)


def _choose(
    job: PackJob,
    window: Window,
    sequences: NDArray[Any],
    repeats: NDArray[Any] | None,
    rejects: RejectWriter,
    made: _Made,
) -> tuple[NDArray[Any], Pieces]:
    """Deduplicate and apply the overflow rule; account for the rows. Return the sequences kept, and their pieces."""
    row, firsts = rows_of(sequences)
    if not job.deduplicate:
        again = np.zeros(len(firsts), bool)
    elif repeats is None:
        again = duplicates(sequences, firsts)
    else:
        again = among(sequences[firsts], repeats)
    kept, row = sequences[~again[row]], row[~again[row]]
    start = kept["start"].astype(np.int64)

    def trained(sequence: Ints, skipped: Ints, length: Ints) -> NDArray[np.bool_]:
        return _trained(window, start[sequence] + skipped, length)

    pieces, overflow = fit(kept["length"].astype(np.int64), job.pack, trained)
    for name in OVERFLOW_COUNTS:
        made.overflow[name] += overflow[name]
    fits = np.zeros(len(firsts), bool)
    fits[row[pieces.sequence]] = True
    lost = ~again & ~fits
    used = fits
    if job.most_tokens is not None:
        used = fits & first_rows(pieces.length, row[pieces.sequence], len(firsts), job.most_tokens)
        pieces = pieces.only(used[row[pieces.sequence]])
    reason = "over_long" if job.pack.overflow is Overflow.DROP else "no_trained_token_in_pack_size"
    for one in sequences[firsts[lost]]:
        name = job.source_files[int(one["part"])][int(one["file"])]
        rejects.add(name, int(one["row"]), reason, f"pack.size is {job.pack.size}")
    made.ledgers.append(
        RowLedger(
            rows_in=len(firsts),
            rows_used=int(used.sum()),
            not_selected=int(fits.sum()) - int(used.sum()),
            duplicates=int(again.sum()),
            rejected={reason: int(lost.sum())} if lost.any() else {},
        )
    )
    return kept, pieces


def _trained(window: Window, start: Ints, length: Ints) -> NDArray[np.bool_]:
    """Return whether pieces have a trained token; the first one is no label. Reads a block of tokens at a time."""
    found = np.zeros(len(length), bool)
    block = lengths_to_offsets(length)[:-1] // _BLOCK_TOKENS
    edges = [*np.flatnonzero(np.diff(block, prepend=-1)).tolist(), len(length)]
    for first, end in itertools.pairwise(edges):
        begins = lengths_to_offsets(length[first:end])[:-1]
        items = window.tokens(start[first:end], length[first:end])
        items[begins] = 0
        found[first:end] = np.bitwise_or.reduceat(items, begins) >> np.uint32(31)
    return found


@dataclass(frozen=True)
class _Plan:
    """The bins of a shard.

    Attributes:
        pieces: what they hold; stored: int64[pieces], tokens of each with its padding.
        items: int64[pieces], numbers of the pieces, bin by bin; offsets: int64[bins + 1], where bins begin there.
    """

    pieces: Pieces
    stored: Ints
    items: Ints
    offsets: Ints

    @property
    def bins(self) -> int:
        return len(self.offsets) - 1

    def sums(self, values: Ints) -> Ints:
        """Add up a value of each piece over every bin."""
        return np.diff(lengths_to_offsets(values[self.items])[self.offsets])


def _plan(job: PackJob, number: int, pieces: Pieces) -> _Plan:
    stored = padded_length(pieces.length, job.pack.pad_to_multiple)
    cost = stored - 1 if job.pack.count is Count.RUNTIME else stored
    # Each shard of each split of each data set draws from a stream of its own.
    seed = int(canonical_hash([job.packing, number]), 16)
    packing: Packing = pack(cost, job.pack.size, order=job.pack.order.value, seed=seed)
    return _Plan(pieces, stored, packing.bin_items.astype(np.int64), packing.bin_offsets)


def _write(job: PackJob, number: int, window: Window, kept: NDArray[Any], plan: _Plan, made: _Made) -> None:
    name = shard_name(number, job.storage.format)
    metadata = ShardMetadata.made_here(job.pack, job.tokenizer_digest, job.vocabulary_size)
    stored_bins = plan.sums(plan.stored)
    width = job.pack.size if job.pack.count is Count.STORED else int(stored_bins.max())
    storage = job.storage.bounded(job.pack.size)
    rows = storage.row_group_size
    # Blocks are whole row groups, so that the block size never affects the file.
    block = max(1, _BLOCK_TOKENS // (job.pack.size * rows)) * rows
    trained = 0
    with open_writer(job.folder / name, storage, metadata, plan.bins, width) as writer:
        for first in range(0, plan.bins, block):
            bins = _gather(window, kept, plan, first, min(first + block, plan.bins), job.eos_id or 0)
            writer.write_block(bins)
            trained += int(bins.loss_mask.sum(dtype=np.int64))
        writer.finalize()
    made.records += writer.records(job.root)
    made.records.append(
        write_provenance(
            job.folder / f"provenance-{number:06d}.parquet", job.root, job.source_files, kept, plan
        )
    )
    runtime = plan.stored - 1
    runtime_bins = plan.sums(runtime)
    fills = runtime_bins if job.pack.count is Count.RUNTIME else stored_bins
    made.records += [
        # For the report: how often each length of a sequence and each fill of a bin occur.
        write_array(job.folder / f"{figure}-{number:06d}.npy", _counted(values), job.root)
        for figure, values in (("lengths", plan.pieces.length), ("fills", fills))
    ]
    made.shards.append(
        {
            "shard": number,
            "rows": made.ledgers[-1].rows_used,
            "bins": plan.bins,
            "sequences": len(plan.stored),
            "tokens": int(plan.stored.sum()),
            "padding_tokens": int((plan.stored - plan.pieces.length).sum()),
            "trained_tokens": trained,
            "runtime_tokens": int(runtime.sum()),
            "max_samples_per_bin": int(np.diff(plan.offsets).max()),
            "dataset_max_seqlen": int(runtime.max()),
            "min_packed_seqlen": int(runtime_bins.min()),
        }
    )


def _counted(values: Ints) -> Ints:
    """Return values and how often each occurs: int64[n, 2]."""
    return np.stack(np.unique(values, return_counts=True), axis=1)


def _gather(
    window: Window, kept: NDArray[Any], plan: _Plan, first_bin: int, end_bin: int, pad_id: int
) -> Bins:
    """Copy the pieces of bins `[first_bin, end_bin)`."""
    offsets = plan.offsets[first_bin : end_bin + 1]
    items = plan.items[offsets[0] : offsets[-1]]
    seq_offsets = offsets - offsets[0]
    length, stored = plan.pieces.length[items], plan.stored[items]
    start = kept["start"].astype(np.int64)[plan.pieces.sequence[items]] + plan.pieces.skipped[items]
    begins = lengths_to_offsets(stored)
    token_offsets = begins[seq_offsets]
    ids, mask = shifted(window.tokens(start, length), lengths_to_offsets(length)[1:] - 1)
    if (stored != length).any():
        places = ranges(begins[:-1], length)
        padded_ids, padded_mask = (
            np.full(int(stored.sum()), pad_id, np.int32),
            np.zeros(int(stored.sum()), np.uint8),
        )
        padded_ids[places], padded_mask[places] = ids, mask
        ids, mask = padded_ids, padded_mask
    seq_starts = begins[:-1] - np.repeat(token_offsets[:-1], np.diff(seq_offsets))
    return Bins(ids, mask, token_offsets, seq_starts.astype(np.int32), seq_offsets)
