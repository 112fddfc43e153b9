"""Blend data sets by weight: every prefix has the right share of each, and small ones are repeated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schemas.errors import ConfigError, InputError
from tasks.sft.datasets.access import Bin
from tasks.sft.datasets.base import SftDataset
from tasks.sft.datasets.blending import blend_order, normalised
from tasks.sft.datasets.collate import Collate
from tasks.sft.datasets.order import WINDOW, EpochOrder, SampleMapping, SampleNumber


class _Order(NamedTuple):
    """The samples of an epoch, by data set and number in it."""

    epoch: int
    sources: NDArray[np.int32]
    numbers: NDArray[np.int64]


class BlendedDataset(SftDataset):
    """Samples of several data sets in proportion to weights.

    After any number of samples, each data set is within one sample of its share. The samples of each come in a seeded
    order, pass after pass, each a permutation. An epoch of the blend goes on where the last one ended: a data set
    smaller than its share is repeated, a larger one is used up over several epochs, and none has a sample that is
    read more often than the others, but for the pass it is in.

    Args:
        datasets: the data sets to blend; their own mapping, if any, is kept.
        weights: on any scale; `None`: in proportion to size, so that each sample comes once.
        max_num_samples: number of samples in an epoch; `None`: as many as in all data sets together.
        seed: seed of the order in each data set.
        collate_fn: makes batches; by default that of the first data set.
        window: see `SftDataset`.

    Raises:
        ConfigError: there are no data sets, or a weight is not valid.
        InputError: on first access, a data set is empty.
    """

    def __init__(
        self,
        datasets: Sequence[SftDataset],
        weights: Sequence[float] | None = None,
        max_num_samples: int | None = None,
        seed: int = 1234,
        *,
        collate_fn: Collate | None = None,
        window: int = WINDOW,
    ) -> None:
        super().__init__(max_num_samples, seed, window)
        if not datasets or (weights is not None and len(weights) != len(datasets)):
            raise ConfigError(
                f"{len(datasets)} data sets with {'no' if weights is None else len(weights)} weights; "
                "pass at least one data set, and either one weight for each or no weights",
                where="weights",
            )
        self.datasets = list(datasets)
        self.collate_fn = collate_fn or self.datasets[0].collate_fn
        self._weights = None if weights is None else normalised(weights)
        self._order: _Order | None = None
        # How often each data set was taken before an epoch.
        self._taken: dict[int, list[int]] = {0: [0] * len(self.datasets)}
        self._orders: list[SampleMapping] = []

    @property
    def weights(self) -> list[float]:
        """The weights, scaled to add up to 1."""
        if self._weights is None:
            self._weights = normalised([len(dataset) for dataset in self.datasets])
        return self._weights

    def __len__(self) -> int:
        return self.num_bins

    @property
    def num_bins(self) -> int:
        """Number of samples. The blend's order is its own mapping: sample i is bin i."""
        if self.max_num_samples is not None:
            return self.max_num_samples
        return sum(len(dataset) for dataset in self.datasets)

    @property
    def bin_groups(self) -> NDArray[np.int64]:
        return np.append(np.arange(0, len(self), self.window), len(self))

    @property
    def epochs_differ(self) -> bool:
        return True

    def drawn(self, sample: int, epoch: int) -> Bin:
        """Return a sample of an epoch; see `SftDataset.drawn`."""
        order = self._of(epoch)
        source, number = int(order.sources[sample]), int(order.numbers[sample])
        dataset = self.datasets[source]
        return dataset.drawn(self._orders[source][number], number // len(dataset))

    def bin(self, number: int) -> Bin:
        """Return the sample `number` of the epoch chosen with `set_epoch`; see `SftDataset.bin`."""
        return self.drawn(number, self.epoch)

    def source(self, number: int) -> int:
        """Return the index of the data set from which sample `number` comes."""
        epoch = number.epoch if isinstance(number, SampleNumber) else self.epoch
        return int(self._of(epoch).sources[number])

    def _of(self, epoch: int) -> _Order:
        """Return the order of an epoch. One is kept; going on to the next one costs 0.8 s per million samples."""
        order = self._order
        if order is None or order.epoch != epoch:
            order = self._order = self._blend(epoch)
        return order

    def _blend(self, epoch: int) -> _Order:
        if not self._orders:
            self._orders = self._mappings()
        known = max(number for number in self._taken if number <= epoch)
        for number in range(known, epoch + 1):
            taken = self._taken[number]
            sources, numbers = blend_order(self.weights, len(self), taken)
            more = np.bincount(sources, minlength=len(taken)).tolist()
            self._taken[number + 1] = [sum(counts) for counts in zip(taken, more, strict=True)]
        return _Order(epoch, sources, numbers)

    def _mappings(self) -> list[SampleMapping]:
        for position, dataset in enumerate(self.datasets):
            if not len(dataset):
                raise InputError(
                    "a data set of the blend has no samples", code="no_bins", where=f"datasets[{position}]"
                )
        return [
            SampleMapping(EpochOrder(dataset.sample_groups, self.seed + position, window=dataset.window))
            for position, dataset in enumerate(self.datasets)
        ]

    @property
    def paths(self) -> tuple[Path | str, ...]:
        return tuple(path for dataset in self.datasets for path in dataset.paths)

    def close(self) -> None:
        """Close the files of all data sets; the next access opens them again."""
        for dataset in self.datasets:
            dataset.close()
