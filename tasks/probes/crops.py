"""Contexts laid into crops of one size, as MaxText reads them.

A crop is six int32 arrays: `inputs`, `inputs_segmentation` (1, 2, … for the contexts of the crop, 0 for padding),
`inputs_position` (from 0 in each context), and the same under `targets`, whose tokens are those of `inputs`: the
trainer shifts. Id 0 is a token like any other; only segmentation tells padding. A context longer than a crop
is cut at the crop's end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.sft.packing import Packing, pack

Crops = dict[str, NDArray[np.int32]]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Contexts:
    """Tokenized contexts, one after the other.

    Attributes:
        tokens: int32[total].
        offsets: int64[contexts + 1].
        modes: int8[contexts], places in `tasks.probes.sampler.MODES`.
    """

    tokens: NDArray[np.int32]
    offsets: Ints
    modes: NDArray[np.int8]

    @classmethod
    def concat(cls, parts: Sequence[Contexts]) -> Contexts:
        """The contexts of all parts in their order."""
        if len(parts) == 1:
            return parts[0]
        sizes = [np.zeros(1, np.int64), *(np.diff(part.offsets) for part in parts)]
        return cls(
            np.concatenate([np.zeros(0, np.int32), *(part.tokens for part in parts)]),
            np.cumsum(np.concatenate(sizes)),
            np.concatenate([np.zeros(0, np.int8), *(part.modes for part in parts)]),
        )


def pack_contexts(sizes: Ints, crop_size: int, rng: np.random.Generator) -> Packing:
    """Best fit by length; crops, and the contexts inside one, are in random order.

    Args:
        sizes: tokens of each context, at most `crop_size`.
    """
    return pack(sizes, crop_size, order="decreasing", seed=rng)


def lay_out(contexts: Contexts, bins: Packing | Ints, crop_size: int) -> Crops:
    """Fill crops.

    Args:
        bins: the contexts of each crop; or the one context of each crop, and then positions run on through the
            padding.

    Returns:
        int32[num_crops, crop_size] by name; `targets` are the arrays of `inputs`.

    >>> contexts = Contexts(np.array([0, 8, 0], np.int32), np.array([0, 2, 3]), np.zeros(2, np.int8))
    >>> crops = lay_out(contexts, Packing(np.array([0, 2]), np.array([1, 0])), 5)
    >>> [crops[name][0].tolist() for name in ("inputs", "inputs_segmentation", "inputs_position")]
    [[0, 0, 8, 0, 0], [1, 2, 2, 0, 0], [0, 0, 1, 0, 0]]
    """
    single = not isinstance(bins, Packing)
    packing = Packing(np.arange(len(bins) + 1), bins) if not isinstance(bins, Packing) else bins
    items, num_crops = packing.bin_items, packing.num_bins
    sizes = np.minimum(np.diff(contexts.offsets), crop_size)[items]

    # Runs of tokens in the order of the crops; the last run of each crop is its padding.
    crop = np.repeat(np.arange(num_crops), np.diff(packing.bin_offsets))
    at = np.arange(len(items)) + crop
    pad_at = packing.bin_offsets[1:] + np.arange(num_crops)
    lengths = np.zeros(len(items) + num_crops, np.int64)
    lengths[at] = sizes
    lengths[pad_at] = crop_size - np.bincount(crop, weights=sizes, minlength=num_crops).astype(np.int64)
    begins = np.cumsum(lengths) - lengths
    sources = begins.copy()
    sources[at] = contexts.offsets[items]
    segments = np.zeros(len(lengths), np.int32)
    segments[at] = np.arange(len(items)) - packing.bin_offsets[crop] + 1

    shape = (num_crops, crop_size)
    tokens = np.arange(num_crops * crop_size, dtype=np.int64)
    segmentation = np.repeat(segments, lengths).reshape(shape)
    used = segmentation > 0
    inputs = contexts.tokens.take(tokens + np.repeat(sources - begins, lengths), mode="clip").reshape(shape)
    inputs *= used
    if single:
        positions = np.broadcast_to(np.arange(crop_size, dtype=np.int32), shape)
    else:
        positions = (tokens - np.repeat(begins, lengths)).reshape(shape).astype(np.int32)
        positions *= used
    return {
        f"{side}{suffix}": values
        for side in ("inputs", "targets")
        for suffix, values in (("", inputs), ("_segmentation", segmentation), ("_position", positions))
    }
