"""Order bins for reading: epochs of permutations that respect row groups.

A row group is the smallest unit that Parquet can read: a full shuffle over groups of 1,000 bins decodes a group for
every bin. So an epoch shuffles the groups, places them end to end, assigns each data-parallel rank its own span, and
shuffles inside windows of the span. A window touches few groups, each group is decoded about once an epoch, and each
rank reads only its share of the files. Any place of the order is found without walking to it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.errors import ConfigError

# Bins shuffled together. At 4,096 tokens per bin they take 42 MB, plus two groups at the edges.
WINDOW = 2048
# What stands for a padding sample: the last bin, with a mask of zeros.
PADDING = -1


class SampleNumber(int):
    """A sample's number that also says of which epoch; otherwise the same as the number.

    Where a data set draws other samples in each epoch, the number alone would not do: a loader's workers have copies
    of the data set, which hear of no epoch but the one they started with.

    Attributes:
        epoch: from 0.

    >>> number = SampleNumber(7, epoch=2)
    >>> number, number == 7, number.epoch
    (7, True, 2)
    """

    epoch: int

    # The default is for pickle, which sets the attribute afterwards.
    def __new__(cls, number: int, epoch: int = 0) -> SampleNumber:
        """Attach an epoch to a number."""
        made = super().__new__(cls, number)
        made.epoch = epoch
        return made


@dataclass(frozen=True)
class Share:
    """The part of every epoch that one data-parallel rank reads.

    All ranks have the same number of samples. If the bins do not divide evenly, `pad` adds padding samples (zero
    mask) at the end of the last ranks' epoch, so that every bin is read exactly once; `drop` leaves out the bins at
    the end of the epoch's order, different ones each epoch. So only with `pad` is every bin read as often as every
    other over the epochs, plus or minus one.

    Raises:
        ConfigError: a field is out of range.
    """

    rank: int = 0
    world_size: int = 1
    remainder: str = "pad"

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"rank {self.rank} of {self.world_size} is out of range; allowed: 0 <= rank < world_size",
                where="rank",
            )
        if self.remainder not in ("pad", "drop"):
            raise ConfigError(f"{self.remainder!r} is unknown; allowed: pad, drop", where="remainder")

    def samples(self, num_bins: int) -> int:
        """Return the samples of each rank in an epoch of `num_bins`.

        >>> Share(0, 4).samples(10), Share(0, 4, "drop").samples(10)
        (3, 2)
        """
        return num_bins // self.world_size if self.remainder == "drop" else -(-num_bins // self.world_size)


class EpochOrder:
    """Compute the order of one rank in any epoch.

    Args:
        group_offsets: int64[groups + 1], first 0: the bins of each group. An epoch has `group_offsets[-1]` bins.
        seed: seed of all permutations.
        shuffle: if false, bins come in order.
        window: bins shuffled together.
        share: the rank's part.

    Raises:
        ConfigError: the window is out of range.

    >>> order = EpochOrder(np.array([0, 2, 4, 6]), seed=0, window=4)
    >>> [order.places(epoch, 0, 6).tolist() for epoch in (0, 1)]
    [[2, 5, 3, 4, 0, 1], [1, 3, 0, 2, 4, 5]]
    """

    def __init__(
        self,
        group_offsets: NDArray[np.int64],
        seed: int = 0,
        *,
        shuffle: bool = True,
        window: int = WINDOW,
        share: Share | None = None,
    ) -> None:
        if window < 1:
            raise ConfigError(
                f"a window of {window} bins is out of range; allowed: 1 or more", where="window"
            )
        self.num_bins = int(group_offsets[-1])
        self.seed, self.shuffle, self.window = seed, shuffle, window
        self.share = share or Share()
        self._group_offsets = group_offsets
        self._laid: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}

    def __len__(self) -> int:
        """Samples of this rank in an epoch."""
        return self.share.samples(self.num_bins)

    def places(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the bins at places `[start, stop)` of the rank's epoch, int64; `PADDING` for padding."""
        first = self.share.rank * len(self)
        at = np.arange(first + start, first + stop)
        real = at < self.num_bins
        if self.shuffle:
            at[real] = self._shuffled(epoch, at[real], first)
        at[~real] = PADDING
        return at

    def _shuffled(self, epoch: int, at: NDArray[np.int64], first: int) -> NDArray[np.int64]:
        # A rank's windows end with its span, never in the next one's.
        last = min(first + len(self), self.num_bins)
        windows = (at - first) // self.window
        for number in np.unique(windows).tolist():
            here = windows == number
            low = first + number * self.window
            rng = _generator(self.seed, epoch, low + 1)
            at[here] = low + rng.permutation(min(self.window, last - low))[at[here] - low]
        groups, starts = self._lay(epoch)
        which = np.searchsorted(starts, at, side="right") - 1
        shuffled: NDArray[np.int64] = at - starts[which] + self._group_offsets[groups[which]]
        return shuffled

    def _lay(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the groups in the order of an epoch, and where each of them starts in it."""
        laid = self._laid.get(epoch)
        if laid is None:
            sizes = np.diff(self._group_offsets)
            groups = _generator(self.seed, epoch, 0).permutation(np.flatnonzero(sizes))
            laid = groups, np.cumsum(sizes[groups]) - sizes[groups]
            # Keep two epochs, because the workers of a loader read ahead into the next one.
            self._laid = dict([*list(self._laid.items())[-1:], (epoch, laid)])
        return laid

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_laid": {}}


class SampleMapping:
    """Map sample numbers to bins: epoch after epoch, each a complete permutation of all bins.

    >>> mapping = SampleMapping(EpochOrder(np.array([0, 1, 2, 3]), seed=1))
    >>> [mapping[sample] for sample in range(6)]
    [2, 0, 1, 1, 0, 2]
    """

    def __init__(self, order: EpochOrder) -> None:
        self._order = order
        self._blocks: OrderedDict[tuple[int, int], list[int]] = OrderedDict()

    def __getitem__(self, sample: int) -> int:
        epoch, at = divmod(sample, self._order.num_bins)
        number, within = divmod(at, self._order.window)
        block = self._blocks.get((epoch, number))
        if block is None:
            start = number * self._order.window
            stop = min(start + self._order.window, self._order.num_bins)
            block = self._order.places(epoch, start, stop).tolist()
            self._blocks[epoch, number] = block
            if len(self._blocks) > 8:
                self._blocks.popitem(last=False)
        return block[within]


def _generator(seed: int, epoch: int, stream: int) -> np.random.Generator:
    bits = np.random.Philox(key=np.array([seed % 2**64, stream], np.uint64), counter=[0, 0, 0, epoch])
    return np.random.Generator(bits)
