"""A block of packed bins in flat arrays, and how the packer gathers it from token spools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tasks.sft.plan import padded_length
from tasks.sft.spool import Spool
from tasks.store.arrays import read_array


@dataclass(frozen=True)
class Bins:
    """Consecutive bins, flat.

    Attributes:
        input_ids: int32[tokens].
        loss_mask: uint8[tokens], shifted.
        token_offsets: int64[bins + 1], where each bin starts in the two arrays above.
        seq_starts: int32[sequences], starts within the bin.
        seq_offsets: int64[bins + 1], where each bin starts in `seq_starts`.
    """

    input_ids: NDArray[np.int32]
    loss_mask: NDArray[np.uint8]
    token_offsets: NDArray[np.int64]
    seq_starts: NDArray[np.int32]
    seq_offsets: NDArray[np.int64]

    @property
    def num_bins(self) -> int:
        return len(self.token_offsets) - 1


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

    One slice per sequence and one concatenation: a gather by token index moves 8 bytes of index for each
    token and was 5x slower.

    Args:
        multiple: pad each sequence until its runtime length is a multiple of this; 1 pads nothing.
        pad_id: the padding token.
    """
    low, high = int(plan.bin_offsets[first_bin]), int(plan.bin_offsets[end_bin])
    items = plan.bin_items[low:high]
    length = plan.item_length[items].astype(np.int64)
    start = plan.item_start[items]
    stored = padded_length(length, multiple)
    ends = np.cumsum(stored)
    seq_offsets = plan.bin_offsets[first_bin : end_bin + 1] - low
    token_offsets = np.concatenate((np.zeros(1, np.int64), ends))[seq_offsets]
    begins = ends - stored
    seq_starts = begins - np.repeat(token_offsets[:-1], np.diff(seq_offsets))

    sources = plan.item_spool[items].tolist()
    spans = list(zip(sources, start.tolist(), (start + length).tolist(), strict=True))
    ids = [spools[k].tokens[s:e] for k, s, e in spans]
    masks = [spools[k].loss_mask[s:e] for k, s, e in spans]
    if multiple > 1:
        padding = (stored - length).tolist()
        ids = _with_padding(ids, padding, np.full(multiple, pad_id, np.int32))
        masks = _with_padding(masks, padding, np.zeros(multiple, np.uint8))
    input_ids = np.concatenate(ids) if ids else np.zeros(0, np.int32)
    loss_mask = np.concatenate(masks) if masks else np.zeros(0, np.uint8)
    # A sequence cut short has no label for its last token any more.
    loss_mask[begins + length - 1] = 0
    return Bins(input_ids, loss_mask, token_offsets, seq_starts.astype(np.int32), seq_offsets)


def _with_padding(parts: list[NDArray], counts: list[int], padding: NDArray) -> list[NDArray]:  # type: ignore[type-arg]
    return [piece for part, count in zip(parts, counts, strict=True) for piece in (part, padding[:count])]
