"""Lay contexts into crops of one size, as MaxText reads them.

A crop is six int32 arrays: `inputs`, `inputs_segmentation` (1, 2, … for the contexts of the crop, 0 for padding),
`inputs_position` (from 0 in each context), and the same under `targets`, whose tokens are those of `inputs`:
`shift_targets` moves them for trainers that do not. Id 0 is a token like any other; only segmentation marks padding.
A context longer than a crop is cut at the crop's end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.packing.arrays import owners
from tasks.packing.bins import Packing, pack

Crops = dict[str, NDArray[np.int32]]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Contexts:
    """Hold tokenized contexts, one after the other.

    Attributes:
        tokens: int32[total].
        offsets: int64[contexts + 1].
        modes: int8[contexts], indices into `tasks.probes.training.draws.MODES`.
    """

    tokens: NDArray[np.int32]
    offsets: Ints
    modes: NDArray[np.int8]

    @classmethod
    def concat(cls, parts: Sequence[Contexts]) -> Contexts:
        """Join the contexts of all parts, in order."""
        if len(parts) == 1:
            return parts[0]
        sizes = [np.zeros(1, np.int64), *(np.diff(part.offsets) for part in parts)]
        return cls(
            np.concatenate([np.zeros(0, np.int32), *(part.tokens for part in parts)]),
            np.cumsum(np.concatenate(sizes)),
            np.concatenate([np.zeros(0, np.int8), *(part.modes for part in parts)]),
        )


def pack_contexts(sizes: Ints, crop_size: int, rng: np.random.Generator) -> Packing:
    """Pack contexts into crops, best fit by length; crops, and the contexts inside one, are in random order.

    Args:
        sizes: tokens of each context, at most `crop_size`.
    """
    return pack(sizes, crop_size, order="decreasing", seed=rng)


def lay_out(contexts: Contexts, bins: Packing | Ints, crop_size: int) -> Crops:
    """Fill crops.

    Args:
        bins: the contexts of each crop; or the one context of each crop, and then positions continue through the
            padding.

    Returns:
        int32[num_crops, crop_size] by name; `targets` share the arrays of `inputs`.

    >>> contexts = Contexts(np.array([0, 8, 0], np.int32), np.array([0, 2, 3]), np.zeros(2, np.int8))
    >>> crops = lay_out(contexts, Packing(np.array([0, 2]), np.array([1, 0])), 5)
    >>> [crops[name][0].tolist() for name in ("inputs", "inputs_segmentation", "inputs_position")]
    [[0, 0, 8, 0, 0], [1, 2, 2, 0, 0], [0, 0, 1, 0, 0]]
    """
    packing = Packing(np.arange(len(bins) + 1), bins) if isinstance(bins, np.ndarray) else bins
    # Compute the place of every context in the crops laid end to end, for all contexts at once.
    items, num_crops = packing.bin_items, packing.num_bins
    sizes = np.minimum(np.diff(contexts.offsets), crop_size)[items]
    crop = owners(np.diff(packing.bin_offsets))
    ends = np.cumsum(sizes)
    used_before = np.concatenate((np.zeros(1, np.int64), ends))[packing.bin_offsets[:-1]]
    begins = ends - sizes - used_before[crop] + crop * crop_size
    segments = np.arange(len(items)) - packing.bin_offsets[crop] + 1

    inputs, segmentation, positions = (np.zeros(num_crops * crop_size, np.int32) for _ in range(3))
    count = np.arange(crop_size, dtype=np.int32)
    # Copy slices of a few hundred tokens: an index for each token takes 3 times as long.
    for source, begin, size, segment in zip(
        contexts.offsets[items].tolist(), begins.tolist(), sizes.tolist(), segments.tolist(), strict=True
    ):
        end = begin + size
        inputs[begin:end] = contexts.tokens[source : source + size]
        segmentation[begin:end] = segment
        positions[begin:end] = count[:size]
    if isinstance(bins, np.ndarray):
        positions.reshape(num_crops, crop_size)[:] = count
    shape = (num_crops, crop_size)
    return with_targets(
        {
            "inputs": inputs.reshape(shape),
            "inputs_segmentation": segmentation.reshape(shape),
            "inputs_position": positions.reshape(shape),
        }
    )


def with_targets(inputs: Crops) -> Crops:
    """Add `targets…` to `inputs…`: the same arrays."""
    return inputs | {f"targets{name.removeprefix('inputs')}": values for name, values in inputs.items()}


def split_crops(crops: Crops) -> list[Crops]:
    """Return single crops, int32[crop_size] by name, of int32[num_crops, crop_size]."""
    return [{name: values[i] for name, values in crops.items()} for i in range(len(crops["inputs"]))]


def shift_targets(crops: Crops) -> Crops:
    """Move the targets to where they are predicted: at each place the next token of the same context.

    The last token of a context has no target: its `targets_segmentation` is 0, as in padding. For trainers that
    compare the output at a place with the target at that place, as MaxText does; one that shifts takes crops as
    they are. Give it to `.map(...)`, after `.mp_prefetch(...)`.

    Args:
        crops: a crop, or a batch of them; not changed.

    >>> crop = {"inputs": [0, 8, 9, 0, 7, 0], "inputs_segmentation": [1, 1, 1, 2, 2, 0]}
    >>> shifted = shift_targets({name: np.array(values, np.int32) for name, values in crop.items()})
    >>> shifted["targets"].tolist(), shifted["targets_segmentation"].tolist()
    ([8, 9, 0, 7, 0, 0], [1, 1, 0, 2, 0, 0])
    """
    tokens, segments = crops["inputs"], crops["inputs_segmentation"]
    targets, trained = np.zeros_like(tokens), np.zeros_like(segments)
    trained[..., :-1] = np.where(segments[..., 1:] == segments[..., :-1], segments[..., 1:], 0)
    targets[..., :-1] = np.where(trained[..., :-1] > 0, tokens[..., 1:], 0)
    return {**crops, "targets": targets, "targets_segmentation": trained}
