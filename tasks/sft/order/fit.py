"""Make sequences fit a bin: truncate, drop or split those that are too long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schemas.sft import Count, Overflow, PackConfig
from tasks.packing.arrays import ranges

# What the overflow rule did to sequences longer than the pack size; `tokens_cut` are in no bin.
OVERFLOW_COUNTS = ("tokens_cut", "sequences_truncated", "sequences_split", "sequences_dropped")

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Pieces:
    """What is packed: sequences, or parts of them.

    Attributes:
        sequence: int64[n], which of the given sequences each is a piece of.
        skipped: int64[n], tokens of the sequence before it.
        length: int64[n], its tokens.
    """

    sequence: Ints
    skipped: Ints
    length: Ints

    def only(self, kept: NDArray[np.bool_]) -> Pieces:
        """Return some of the pieces."""
        return Pieces(self.sequence[kept], self.skipped[kept], self.length[kept])


def longest_stored(pack_config: PackConfig) -> int:
    """Return the length of the longest sequence that fits a bin, in stored tokens including padding.

    >>> longest_stored(PackConfig(size=4096)), longest_stored(PackConfig(size=4096, count="stored"))
    (4097, 4096)
    """
    room = pack_config.size - (0 if pack_config.count is Count.RUNTIME else 1)
    multiple = pack_config.pad_to_multiple
    return room // multiple * multiple + 1


def padded_length(lengths: Ints, multiple: int) -> Ints:
    """Compute stored lengths after padding the runtime length, L - 1, up to a multiple.

    >>> padded_length(np.array([2, 9, 10]), 8).tolist()
    [9, 9, 17]
    """
    return -(-(lengths - 1) // multiple) * multiple + 1


def fit(
    length: Ints, pack: PackConfig, trained: Callable[[Ints, Ints, Ints], NDArray[np.bool_]]
) -> tuple[Pieces, Counter[str]]:
    """Apply the overflow rule to sequences; pieces of one in which no token is trained are left out.

    Args:
        length: int64[sequences].
        trained: whether pieces, given as sequence, skipped tokens and length, have a trained token.

    Returns:
        The pieces in the order of the sequences, and what the rule did, by `OVERFLOW_COUNTS`.
    """
    longest = longest_stored(pack)
    sequence, skipped = np.arange(len(length)), np.zeros(len(length), np.int64)
    over = length > longest
    counts: Counter[str] = Counter()
    if not over.any():
        return Pieces(sequence, skipped, length), counts
    if pack.overflow is Overflow.DROP:
        sequence, skipped = sequence[~over], skipped[~over]
        pieces = Pieces(sequence, skipped, length[sequence])
    else:
        pieces = _cut(length, over, longest, pack.overflow)
        cut = np.flatnonzero(over[pieces.sequence])
        good = np.ones(len(pieces.length), bool)
        good[cut] = trained(pieces.sequence[cut], pieces.skipped[cut], pieces.length[cut])
        pieces = pieces.only(good)
    left = np.zeros(len(length), bool)
    left[pieces.sequence] = True
    counts["sequences_dropped"] = int((~left).sum())
    if pack.overflow is not Overflow.DROP:
        how = "truncated" if pack.overflow is Overflow.TRUNCATE else "split"
        counts[f"sequences_{how}"] = int((over & left).sum())
    # Pieces of one sequence overlap by a token, which was not cut.
    again = (pieces.sequence[1:] == pieces.sequence[:-1]) & (
        pieces.skipped[1:] == pieces.skipped[:-1] + pieces.length[:-1] - 1
    )
    counts["tokens_cut"] = int(length.sum()) - (int(pieces.length.sum()) - int(again.sum()))
    return pieces, counts


def _cut(length: Ints, over: NDArray[np.bool_], longest: int, overflow: Overflow) -> Pieces:
    """Truncate long sequences to `longest`, or split them.

    Pieces overlap by one token: a piece cannot train the label of its own first token, so without the overlap
    that label would be lost; with it every label is trained exactly once.
    """
    sequence = np.arange(len(length))
    if overflow is Overflow.TRUNCATE:
        return Pieces(sequence, np.zeros(len(length), np.int64), np.minimum(length, longest))
    step = longest - 1
    pieces = np.where(over, -(-(length - 1) // step), 1)
    skipped = ranges(0, pieces) * step
    return Pieces(
        np.repeat(sequence, pieces),
        skipped,
        np.minimum(np.repeat(length, pieces) - skipped, longest),
    )


def first_rows(length: Ints, row: Ints, rows: int, most_tokens: int) -> NDArray[np.bool_]:
    """Mark rows, from the first, whose pieces together come as close as can be to `most_tokens`: bool[rows].

    >>> pieces, row = np.array([10, 10, 10, 30]), np.array([0, 0, 1, 2])
    >>> [first_rows(pieces, row, 3, most).tolist() for most in (9, 24, 41)]
    [[False, False, False], [True, False, False], [True, True, False]]
    """
    before = np.concatenate(([0], np.cumsum(np.bincount(row, length, rows).astype(np.int64))))
    marked: NDArray[np.bool_] = np.arange(rows) < int(np.abs(before - most_tokens).argmin())
    return marked
