"""Sort grouped rows by time, and cut sorted items into ranges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray


def time_order(groups: NDArray[Any], times: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return the order that sorts every group's rows by time, ties as given; `None` if they are sorted already.

    Only the groups that need it are sorted, because measurements mostly arrive in time order.

    Args:
        groups: int[n], sorted, so that the rows of a group are together.
        times: int64[n].

    >>> time_order(np.array([0, 0, 1, 1]), np.array([5, 6, 9, 8])).tolist()
    [0, 1, 3, 2]
    """
    late = (times[1:] < times[:-1]) & (groups[1:] == groups[:-1])
    if not late.any():
        return None
    unsorted = np.zeros(int(groups[-1]) + 1, dtype=bool)
    unsorted[groups[1:][late]] = True
    rows = np.flatnonzero(unsorted[groups])
    order = np.arange(len(groups), dtype=np.int64)
    order[rows] = rows[np.lexsort((times[rows], groups[rows]))]
    return order


def cut_ranges(sizes: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of consecutive items that take at most `most` together, or of one larger item.

    >>> list(cut_ranges(np.array([3, 3, 9, 1, 1]), 6))
    [(0, 2), (2, 3), (3, 5)]
    """
    ends = np.cumsum(sizes)
    low = 0
    while low < len(sizes):
        before = int(ends[low - 1]) if low else 0
        high = max(int(np.searchsorted(ends, before + most, side="right")), low + 1)
        yield low, high
        low = high
