"""Gather packed bins from the token spools, following a pack plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tasks.packing.arrays import lengths_to_offsets
from tasks.sft.plan import padded_length
from tasks.sft.shards.bins import Bins
from tasks.sft.spool import Spool
from tasks.storage.arrays import read_array

# At 64 KiB each for tokens and mask, at most 128 MiB of a spool are resident.
_RUN_SEQUENCES = 1024


class PackPlan:
    """The arrays of a pack plan, memory-mapped; see tasks/sft/plan.py for shapes and dtypes."""

    def __init__(self, folder: Path) -> None:
        self.item_spool = read_array(folder / "item_spool.npy")
        self.item_start = read_array(folder / "item_start.npy")
        self.item_length = read_array(folder / "item_length.npy")
        self.bin_offsets = read_array(folder / "bin_offsets.npy")
        self.bin_items = read_array(folder / "bin_items.npy")
        self.shard_bins = read_array(folder / "shard_bins.npy")


def gather(
    plan: PackPlan, spools: Sequence[Spool], first_bin: int, end_bin: int, multiple: int, pad_id: int
) -> Bins:
    """Copy the sequences of bins `[first_bin, end_bin)` out of the spools.

    Each sequence is one copy: gathering by token index moves 8 bytes of index per token and was 5x slower.
    Pages of the spools are released along the way: each sequence makes the 64 KiB around it resident, so one
    block touches nearly all of a corpus, and peak memory would grow with the corpus.

    Args:
        multiple: pad each sequence until its runtime length is a multiple of this; 1 pads nothing.
        pad_id: the padding token.
    """
    # Lay out the block first: lengths after padding say where each sequence begins, before anything is copied.
    low, high = int(plan.bin_offsets[first_bin]), int(plan.bin_offsets[end_bin])
    items = plan.bin_items[low:high]
    length = plan.item_length[items].astype(np.int64)
    start = plan.item_start[items]
    stored = padded_length(length, multiple)
    offsets = lengths_to_offsets(stored)
    seq_offsets = plan.bin_offsets[first_bin : end_bin + 1] - low
    token_offsets = offsets[seq_offsets]
    begins = offsets[:-1]
    seq_starts = begins - np.repeat(token_offsets[:-1], np.diff(seq_offsets))

    # Filled with padding up front, so that only real tokens are copied.
    input_ids = np.full(int(stored.sum()), pad_id, np.int32)
    loss_mask = np.zeros(len(input_ids), np.uint8)
    source = plan.item_spool[items]
    # Copy in spool order, so that only part of one spool is resident at a time.
    by_place = np.lexsort((start, source))
    for some in _runs(by_place, source):
        spool = spools[source[some[0]]]
        _copy(spool, start[some], length[some], begins[some], input_ids, loss_mask)
        spool.release_pages()
    # The last token of a truncated sequence no longer has a label.
    loss_mask[begins + length - 1] = 0
    return Bins(input_ids, loss_mask, token_offsets, seq_starts.astype(np.int32), seq_offsets)


def _runs(by_place: NDArray[np.int64], source: NDArray[np.int32]) -> list[NDArray[np.int64]]:
    """Cut `by_place` where the spool changes, and into runs of at most 1024 sequences."""
    if not len(by_place):
        return []
    changes = np.flatnonzero(np.diff(source[by_place])) + 1
    cuts = np.union1d(changes, np.arange(_RUN_SEQUENCES, len(by_place), _RUN_SEQUENCES))
    return np.split(by_place, cuts)


def _copy(
    spool: Spool,
    start: NDArray[np.int64],
    length: NDArray[np.int64],
    begins: NDArray[np.int64],
    input_ids: NDArray[np.int32],
    loss_mask: NDArray[np.uint8],
) -> None:
    """Copy `length[i]` entries of the spool from `start[i]` to `begins[i]`."""
    tokens, mask = spool.tokens, spool.loss_mask
    for s, n, b in zip(start.tolist(), length.tolist(), begins.tolist(), strict=True):
        input_ids[b : b + n] = tokens[s : s + n]
        loss_mask[b : b + n] = mask[s : s + n]
