"""Choose sizes of shards as a function of the inputs, never of the number of workers."""

from __future__ import annotations


def part_size(total: int, smallest: int, most_parts: int) -> int:
    """Return the smallest `smallest * 2**k` so that `most_parts` parts hold `total` bytes or rows.

    A power of two, so that inputs that grow a little keep their parts and their cached results.

    >>> [part_size(total, smallest=4, most_parts=100) for total in (0, 400, 401, 3000)]
    [4, 4, 8, 32]
    """
    size = smallest
    while size * most_parts < total:
        size *= 2
    return size
