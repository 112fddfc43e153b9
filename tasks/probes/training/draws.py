"""Choose the measurements of contexts from uniform numbers, for all contexts at once.

A context has one row of uniforms: for the size and the place of its window, its mode, its untimed share, and then
`target` each for what is picked, two shuffles, and the orders of blocks. All are there, used or not, so that a draw
never shifts the next. The rules are those of `tasks.probes.training.sampler`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.packing.arrays import lengths_to_offsets
from tasks.probes.training.tokens import BLOCK_ORDERS

FULL, PARTIAL, NONE = 0, 1, 2
MODES = ("full", "partial", "none")

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_PARTIAL_SHARE = (0.1, 0.9)
_SINGLE = 4


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """Name the measurements that make up the contexts of some rows, in the order they are written.

    Attributes:
        rows: int64[contexts], the row each context is from, ascending.
        modes: int8[contexts], indices into `MODES`.
        context_offsets: int64[contexts + 1], where each context starts in the three arrays below.
        positions: int64[n], of a measurement in its row.
        timed: bool[n], whether its timestamp is written.
        block_orders: int64[n], rows of `BLOCK_ORDERS`.
    """

    rows: Ints
    modes: NDArray[np.int8]
    context_offsets: Ints
    positions: Ints
    timed: NDArray[np.bool_]
    block_orders: Ints


def num_uniforms(target: int) -> int:
    """Return how many uniforms a context needs that has up to `target` measurements."""
    return _SINGLE + 4 * target


def choose(
    num_measurements: Ints, rows: Ints, uniform: Floats, mode_weights: tuple[float, float, float]
) -> Drawn:
    """Choose the measurements of contexts.

    Args:
        num_measurements: int64[rows], of each row.
        rows: int64[contexts], the row each context is from, ascending.
        uniform: float64[contexts, num_uniforms(target)], in [0, 1).
        mode_weights: weights of `MODES`.
    """
    target = (uniform.shape[1] - _SINGLE) // 4
    picks, which, where, blocks = np.split(uniform[:, _SINGLE:], 4, axis=1)
    sizes = num_measurements[rows]
    chosen, counts = _windows(sizes, target, uniform[:, 0], uniform[:, 1], picks)
    bounds = np.cumsum(mode_weights) / sum(mode_weights)
    modes = np.searchsorted(bounds[:2], uniform[:, 2], side="right").astype(np.int8)
    untimed = _num_untimed(modes, counts, uniform[:, 3])
    order, timed = _arrange(counts, untimed, which, where)

    used = np.arange(target) < counts[:, None]
    return Drawn(
        rows,
        modes,
        lengths_to_offsets(counts),
        np.take_along_axis(chosen, order, axis=1)[used],
        timed[used],
        (blocks[used] * len(BLOCK_ORDERS)).astype(np.int64),
    )


def _windows(sizes: Ints, target: int, size: Floats, place: Floats, picks: Floats) -> tuple[Ints, Ints]:
    """Choose the positions of each context, ascending: int64[contexts, target], and how many of them are used."""
    whole = sizes < target
    width = np.exp(size * np.log(np.maximum(sizes, 1))).astype(np.int64)
    width = np.where(whole, sizes, np.clip(width, 1, sizes))
    start = (place * (sizes - width + 1)).astype(np.int64)
    chosen = np.broadcast_to(np.arange(target), (len(sizes), target)).copy()
    large = np.flatnonzero(width > target)
    chosen[large] = _subsets(width[large], picks[large])
    return chosen + start[:, None], np.minimum(width, target)


def _subsets(sizes: Ints, picks: Floats) -> Ints:
    """Draw a uniform subset of `picks.shape[1]` of each `range(size)`, ascending, with Floyd's method on all at once.

    Bentley & Floyd, "A sample of brilliance", CACM 30 (1987): for j from size - k to size - 1, take a random one
    of 0..j, or j itself if that is already taken.
    """
    num_picks = picks.shape[1]
    subset = np.empty(picks.shape, np.int64)
    for i in range(num_picks):
        last = sizes - num_picks + i
        pick = (picks[:, i] * (last + 1)).astype(np.int64)
        taken = (subset[:, :i] == pick[:, None]).any(axis=1)
        subset[:, i] = np.where(taken, last, pick)
    subset.sort(axis=1)
    return subset


def _num_untimed(modes: NDArray[np.int8], counts: Ints, uniform: Floats) -> Ints:
    low, high = _PARTIAL_SHARE
    some = np.floor(counts * (low + (high - low) * uniform) + 0.5).astype(np.int64)
    untimed: Ints = np.where(modes == FULL, 0, np.where(modes == NONE, counts, some))
    return untimed


def _arrange(counts: Ints, untimed: Ints, which: Floats, where: Floats) -> tuple[Ints, NDArray[np.bool_]]:
    """Put `untimed` random measurements of each context, in random order, at as many random slots.

    The others take the slots left over in their own order.

    Returns:
        int64[contexts, target]: the measurement in each slot, and whether it is timed; slots from `counts` on
        are not used.
    """
    slots = np.arange(which.shape[1])
    unused = slots >= counts[:, None]
    # Random permutations of the used slots, with the unused slots behind them.
    measurement = np.argsort(np.where(unused, 2.0, which), axis=1)
    slot = np.argsort(np.where(unused, 2.0, where), axis=1)
    moved = slots < untimed[:, None]
    context = np.nonzero(moved)[0]
    moved_measurement = np.zeros(unused.shape, np.bool_)
    moved_measurement[context, measurement[moved]] = True
    moved_slot = np.zeros(unused.shape, np.bool_)
    moved_slot[context, slot[moved]] = True

    order = np.empty(unused.shape, np.int64)
    order[moved_slot] = -1
    order[context, slot[moved]] = measurement[moved]
    # Each context has as many slots as measurements left, so reading both row by row pairs them.
    order[~moved_slot] = np.nonzero(~moved_measurement)[1]
    return order, ~moved_slot
