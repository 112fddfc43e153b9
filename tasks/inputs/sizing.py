"""Choose part sizes as a function of the inputs, never of the number of workers."""

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


def batch_size(items: int, most_batches: int) -> int:
    """Return how many items to put into each of at most `most_batches` batches; at least 1.

    >>> [batch_size(items, most_batches=64) for items in (0, 64, 65)]
    [1, 1, 2]
    """
    return -(-items // most_batches) or 1
