"""Check the invariants of packed bins on whole blocks at once.

Each check yields the rule, the rows that break it and a description. A row that fails a structural rule is
excluded from the rules that depend on it, so that each fault is reported once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from schemas.sft import Count
from tasks.packing.arrays import owners

# Rules that are ours alone: other tools may keep the unshifted mask, and pad with a token of their own.
OURS_ONLY = frozenset({"mask_ends_with_0", "padding_is_0"})

Finding = tuple[str, NDArray[np.int64], str]


@dataclass(frozen=True)
class Limits:
    """Known limits of a file; `None` skips the rule.

    Attributes:
        pack_size: most tokens a bin may count.
        count: whether a sequence of L tokens counts L - 1 or L.
        vocabulary_size: ids are below this.
    """

    pack_size: int | None = None
    count: Count = Count.RUNTIME
    vocabulary_size: int | None = None


@dataclass(frozen=True)
class RawBins:
    """Bins as stored in a file, with nothing assumed.

    Attributes:
        ids, mask, starts: flat values of the three columns.
        ids_offsets, mask_offsets, starts_offsets: int64[bins + 1] into them, first 0.
        null_rows: bins that are null or contain a null; all their lists are empty here.
    """

    ids: NDArray[np.int64]
    ids_offsets: NDArray[np.int64]
    mask: NDArray[np.int64]
    mask_offsets: NDArray[np.int64]
    starts: NDArray[np.int64]
    starts_offsets: NDArray[np.int64]
    null_rows: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def num_bins(self) -> int:
        return len(self.ids_offsets) - 1


def check_bins(bins: RawBins, limits: Limits) -> Iterator[Finding]:
    """Yield every broken rule with the rows, counted from 0 within the block, that break it."""
    tokens = np.diff(bins.ids_offsets)
    sequences = np.diff(bins.starts_offsets)
    null = np.zeros(len(tokens), dtype=bool)
    null[bins.null_rows] = True
    yield "no_nulls", bins.null_rows, "a null list or a null inside a list"
    empty = (tokens == 0) & ~null
    yield "not_empty", np.flatnonzero(empty), "the bin has no tokens"
    short = np.diff(bins.mask_offsets) != tokens
    yield "mask_length", np.flatnonzero(short), "loss_mask and input_ids differ in length"
    bad_starts = sequences == 0
    yield "has_sequences", np.flatnonzero(bad_starts & ~null), "seq_start_id is empty"
    for rule, rows, detail in _check_starts(bins, tokens, np.flatnonzero(~bad_starts)):
        bad_starts[rows] = True
        yield rule, rows, detail
    not_binary = _rows_of(np.flatnonzero((bins.mask > 1) | (bins.mask < 0)), bins.mask_offsets)
    yield "mask_binary", not_binary, "loss_mask contains a value other than 0 and 1"
    sound = ~(empty | short | bad_starts)
    yield "mask_ends_with_0", _untidy_ends(bins, sound), "a sequence's last loss_mask entry is not 0"
    yield from _check_ids(bins, limits)
    if limits.pack_size is not None:
        used = tokens - sequences if limits.count is Count.RUNTIME else tokens
        over = np.flatnonzero(used > limits.pack_size)
        worst = int(used[over].max()) if len(over) else 0
        yield (
            "fits_pack_size",
            over,
            f"the bin has {worst} tokens ({limits.count}), but the pack size is {limits.pack_size}",
        )


def _check_starts(bins: RawBins, tokens: NDArray[np.int64], some: NDArray[np.int64]) -> Iterator[Finding]:
    """Check `seq_start_id` in the rows `some`, which all have at least one start."""
    first = some[bins.starts[bins.starts_offsets[some]] != 0]
    yield "starts_at_0", first, "seq_start_id does not begin with 0"
    # Compare instead of subtracting: differences of unsigned numbers, in other tools' files, are never negative.
    rises = bins.starts[1:] > bins.starts[:-1]
    rises[bins.starts_offsets[some[1:]] - 1] = True  # starts restart at 0 in each bin
    unsorted = _rows_of(np.flatnonzero(~rises), bins.starts_offsets)
    yield "starts_increase", unsorted, "seq_start_id is not strictly increasing"
    outside = some[bins.starts[bins.starts_offsets[some + 1] - 1] >= np.maximum(tokens[some], 1)]
    yield "starts_inside", outside, "the last seq_start_id is not inside input_ids"


def _check_ids(bins: RawBins, limits: Limits) -> Iterator[Finding]:
    negative = _rows_of(np.flatnonzero(bins.ids < 0), bins.ids_offsets)
    yield "ids_not_negative", negative, "input_ids contains a negative id"
    if limits.vocabulary_size is not None:
        beyond = np.flatnonzero(bins.ids >= limits.vocabulary_size)
        worst = int(bins.ids[beyond].max()) if len(beyond) else 0
        detail = f"input_ids contains {worst}, but the vocabulary has {limits.vocabulary_size} ids"
        yield "ids_in_vocabulary", _rows_of(beyond, bins.ids_offsets), detail


def _untidy_ends(bins: RawBins, sound: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Find structurally sound rows with a sequence whose last mask entry is not 0."""
    per_bin = np.diff(bins.starts_offsets)
    row = owners(per_bin)
    use = sound[row]
    row, starts = row[use], bins.starts[use]
    ends = bins.ids_offsets[row + 1].copy()
    same = np.flatnonzero(row[:-1] == row[1:])
    ends[same] = bins.ids_offsets[row[same]] + starts[same + 1]
    # Mask and ids offsets agree only in files without a mask_length fault, so use the mask's own.
    position = ends - 1 - bins.ids_offsets[row] + bins.mask_offsets[row]
    untidy: NDArray[np.int64] = np.unique(row[bins.mask[position] != 0])
    return untidy


def _rows_of(positions: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.unique(np.searchsorted(offsets, positions, side="right") - 1)
