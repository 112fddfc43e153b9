"""Splits by hash: a conversation's split depends on its own group and the seed, never on its position.

Equal conversations fall into the same split, even across data sets, so none leaks from train into test.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def unit_hash(groups: NDArray[np.uint64], seed: int) -> NDArray[np.float64]:
    """Map each group digest to a number in [0, 1), uniformly and independently for different seeds.

    This is the finaliser of SplitMix64 (Steele, Lea, Flood 2014) over the digest xor the mixed seed; the upper
    53 bits become the fraction.

    Args:
        groups: uint64[n] digests.
        seed: 0 to 2**63 - 1.

    >>> unit_hash(np.array([1, 2, 1], np.uint64), seed=42).round(3).tolist()
    [0.95, 0.447, 0.95]
    """
    mixed_seed = _mix(np.array([seed], dtype=np.uint64))[0]
    return (_mix(groups ^ mixed_seed) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def in_split(groups: NDArray[np.uint64], seed: int, low: float, high: float) -> NDArray[np.bool_]:
    """Mark the groups that fall into the split of `[low, high)`."""
    share = unit_hash(groups, seed)
    return (share >= low) & (share < high)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
