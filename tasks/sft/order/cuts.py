"""Cut the splits of a data set into shards of equal size, from what the spools say of themselves.

Nothing here grows with the rows: a spool gives its tokens by the upper 12 bits of their positions, and where that is
too coarse, the sparse index of the records there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from schemas.sft import SplitsConfig
from tasks.sft.order.positions import RING, rotation, shard_unit, split_unit
from tasks.spool.layout import BUCKET_BITS, BUCKETS
from tasks.spool.reader import SpoolReader

_WIDTH = RING >> BUCKET_BITS
# So many entries of indexes are held at once: about 300 MB.
_MOST_ENTRIES = 1 << 20
# Opens the spools of a data set, one after the other.
Spools = Callable[[], Iterable[SpoolReader]]


@dataclass(frozen=True)
class Curve:
    """How many tokens lie before each position, by straight lines between knots.

    Attributes:
        at: positions, rotated by the seed, ascending from 0 to 2**64, as Python integers.
        before: tokens before each of them.
    """

    at: list[int]
    before: list[int]

    def tokens_before(self, position: int) -> int:
        """Return the tokens before a position."""
        knot = max(int(np.searchsorted(self._at, np.uint64(min(position, RING - 1)), "right")) - 1, 0)
        if knot + 1 >= len(self.at):
            return self.before[-1]
        width, tokens = self.at[knot + 1] - self.at[knot], self.before[knot + 1] - self.before[knot]
        return self.before[knot] + tokens * (position - self.at[knot]) // width

    def position_of(self, tokens: int) -> int:
        """Return the position before which there are this many tokens."""
        knot = min(int(np.searchsorted(self._before, tokens, "right")), len(self.at) - 1)
        low = knot - 1
        width, more = self.at[knot] - self.at[low], self.before[knot] - self.before[low]
        return self.at[low] + (tokens - self.before[low]) * width // more if more else self.at[knot]

    def __post_init__(self) -> None:
        object.__setattr__(self, "_at", np.array(self.at[:-1], np.uint64))
        object.__setattr__(self, "_before", np.array(self.before, np.int64))

    _at: NDArray[np.uint64] = field(init=False, repr=False)
    _before: NDArray[np.int64] = field(init=False, repr=False)


def cut_shards(
    spools: Spools, splits: SplitsConfig, seed: int, shard_tokens: int, *, grouped: bool, deduplicate: bool
) -> dict[str, list[int]]:
    """Cut each split into shards of about the same number of tokens, at most about `shard_tokens`.

    Returns:
        For each split, the rotated positions where its shards begin, and where the last one ends; together the shards
        cover all positions.
    """
    turn = rotation(seed, grouped)
    buckets, entries = np.zeros(BUCKETS, np.int64), 0
    for spool in spools():
        buckets += spool.histogram(deduplicate)
        entries += spool.num_entries
    curve = _curve(buckets, {}, turn)
    edges = split_edges(splits, grouped)
    counts = {
        name: max(1, -(-(curve.tokens_before(high) - curve.tokens_before(low)) // shard_tokens))
        for name, (low, high) in edges.items()
    }
    shards = sum(counts.values())
    # Copies and groups lie close together, so a bucket's tokens may all be at one end of it; at both ends of a shard
    # that is at most a 20th of it. Where the indexes would take too much memory, half a shard has to do.
    parts = 40 if entries <= _MOST_ENTRIES else 2
    heavy = np.flatnonzero(buckets * parts * shards > buckets.sum())
    if shards > len(edges) and len(heavy):
        curve = _curve(buckets, _shapes(spools, heavy, deduplicate), turn)
    return {
        name: _cut(curve, low, high, counts[name], shard_unit(deduplicate))
        for name, (low, high) in edges.items()
    }


def split_edges(splits: SplitsConfig, grouped: bool) -> dict[str, tuple[int, int]]:
    """Return the rotated interval of each split: together all positions.

    >>> split_edges(SplitsConfig(train=0.75, valid=0.25, test=0), False)["valid"] == (3 << 62, 1 << 64)
    True
    """
    unit = split_unit(grouped)
    return {
        name: (int(low * RING) // unit * unit, int(high * RING) // unit * unit)
        for name, (low, high) in splits.intervals().items()
    }


def _curve(buckets: NDArray[np.int64], shapes: Mapping[int, tuple[list[int], list[int]]], turn: int) -> Curve:
    """Build the curve of tokens before each rotated position.

    Args:
        buckets: int64[4096], tokens by the upper bits of the position.
        shapes: for some buckets, positions and the tokens there, ascending.
    """
    at: list[int] = []
    tokens: list[int] = []  # between this position and the next
    for bucket, count in enumerate(buckets.tolist()):
        start = bucket * _WIDTH
        places, weights = shapes.get(bucket, ([], []))
        at.append(start)
        tokens.append(0 if places else count)
        at += places
        tokens += weights
    rotated = [(position + turn) % RING for position in at]
    # The ring is cut where it wraps; what lies between the last position before the cut and the first after it is
    # shared between both sides.
    first = min(range(len(rotated)), key=rotated.__getitem__)
    rotated, tokens = rotated[first:] + rotated[:first], tokens[first:] + tokens[:first]
    head = 0
    if rotated[0]:
        span = rotated[0] + RING - rotated[-1]
        head = tokens[-1] * rotated[0] // span
        tokens[-1] -= head
    before = np.cumsum([0, head, *tokens]).tolist()
    knots = [0, *rotated, RING]
    return Curve(knots, before)


def _shapes(
    spools: Spools, buckets: NDArray[np.int64], distinct: bool
) -> dict[int, tuple[list[int], list[int]]]:
    """Return the entries of all indexes in these buckets: positions and tokens, ascending."""
    positions, weights = [], []
    for spool in spools():
        places = spool.index["position"]
        inside = np.isin((places >> np.uint64(64 - BUCKET_BITS)).astype(np.int64), buckets)
        positions.append(places[inside])
        weights.append(spool.weights(distinct)[inside])
    position, weight = np.concatenate(positions), np.concatenate(weights)
    order = np.argsort(position, kind="stable")
    position, weight = position[order], weight[order]
    bucket = (position >> np.uint64(64 - BUCKET_BITS)).astype(np.int64)
    begins, ends = (np.searchsorted(bucket, buckets, side).tolist() for side in ("left", "right"))
    return {
        int(one): (position[begin:end].tolist(), weight[begin:end].tolist())
        for one, begin, end in zip(buckets.tolist(), begins, ends, strict=True)
    }


def _cut(curve: Curve, low: int, high: int, shards: int, unit: int) -> list[int]:
    first, last = curve.tokens_before(low), curve.tokens_before(high)
    inner = [
        curve.position_of(first + (last - first) * number // shards) // unit * unit
        for number in range(1, shards)
    ]
    return [low, *(min(max(edge, low), high) for edge in inner), high]
