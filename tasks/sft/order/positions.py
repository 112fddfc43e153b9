"""The position of a conversation: one 64-bit coordinate of which splits and shards are intervals.

A position depends on the content of a row and its number, on nothing around it, and on no setting but `group`:

- without a group: 48 bits of the conversation's digest, 16 bits of a hash of the row number;
- with a group: 24 bits of the group's digest, 24 of the conversation's, 16 of the row number.

So equal conversations lie side by side, also those of different data sets, and many copies of one, or one large
group, spread over an interval that can be cut. The seed rotates the ring of positions instead of changing them, so
another seed reads the same spools. The splits of two seeds overlap by chance, as intervals do.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

RING = 1 << 64
_ROW_BITS = 16
_MEMBER_BITS = 40


def positions(
    digest: NDArray[np.uint64], group: NDArray[np.uint64] | None, row: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Return the positions of rows.

    Args:
        digest: uint64[n], part of the digest of each conversation.
        group: uint64[n], digest of each row's group, or `None` without groups.
        row: int64[n], number of each row in its file.
    """
    low: NDArray[np.uint64] = _mix(row.astype(np.uint64)) >> np.uint64(64 - _ROW_BITS)
    if group is None:
        return (digest >> np.uint64(_ROW_BITS) << np.uint64(_ROW_BITS)) | low
    member = digest >> np.uint64(_MEMBER_BITS) << np.uint64(_ROW_BITS)
    return (group >> np.uint64(_MEMBER_BITS) << np.uint64(_MEMBER_BITS)) | member | low


def split_unit(grouped: bool) -> int:
    """Return the unit of split edges, so that neither equal conversations nor a group straddle one."""
    return 1 << (_MEMBER_BITS if grouped else _ROW_BITS)


def shard_unit(deduplicate: bool) -> int:
    """Return the unit of shard edges: equal conversations share a shard if only one of them is kept."""
    return 1 << _ROW_BITS if deduplicate else 1


def rotation(seed: int, grouped: bool) -> int:
    """Return how far a seed rotates the ring; a multiple of the unit of split edges."""
    digest = hashlib.sha256(f"gristmill-split-{seed}".encode()).digest()
    return int.from_bytes(digest[:8], "big") // split_unit(grouped) * split_unit(grouped)


def unrotated(low: int, high: int, turn: int) -> list[tuple[int, int]]:
    """Return the positions of a rotated interval: one interval, or two where it wraps.

    >>> unrotated(10, 20, 4), unrotated(0, 20, 4) == [(RING - 4, RING), (0, 16)]
    ([(6, 16)], True)
    """
    if low >= high:
        return []
    start, stop = (low - turn) % RING, (high - turn) % RING or RING
    return [(start, stop)] if start < stop else [(start, RING), (0, stop)]


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble numbers: the finaliser of SplitMix64 (Steele, Lea, Flood 2014)."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
