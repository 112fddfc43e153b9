"""Blend data sets by weight: every prefix has the right share of each, and small ones are repeated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from schemas.errors import ConfigError, InputError
from tasks.sft.datasets.access import Bin
from tasks.sft.datasets.base import SftDataset
from tasks.sft.datasets.blending import blend_order, normalised
from tasks.sft.datasets.collate import Collate
from tasks.sft.datasets.order import WINDOW, EpochOrder, SampleMapping


class BlendedDataset(SftDataset):
    """Samples of several data sets in proportion to weights.

    After any number of samples, each data set is within one sample of its share. The samples of each come in a seeded
    order, epoch after epoch, each a permutation: a data set smaller than its share is repeated, a larger one is not
    used up.

    Args:
        datasets: the data sets to blend; their own mapping, if any, is kept.
        weights: on any scale; `None`: in proportion to size, so that each sample comes once.
        max_num_samples: number of samples; `None`: as many as in all data sets together.
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
        self._order: tuple[NDArray[np.int32], NDArray[np.int64]] | None = None
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

    def _mapped(self, sample: int) -> int:
        return sample

    def bin(self, number: int) -> Bin:
        """Return the sample `number` of the blend; see `SftDataset.bin`."""
        sources, numbers = self._order or self._blend()
        source = int(sources[number])
        sample = self._orders[source][int(numbers[number])]
        item = self.datasets[source][sample]
        return item["input_ids"], item["seq_boundaries"], item["loss_mask"]

    def source(self, number: int) -> int:
        """Return the index of the data set from which sample `number` comes."""
        return int((self._order or self._blend())[0][number])

    def _blend(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        for position, dataset in enumerate(self.datasets):
            if not len(dataset):
                raise InputError(
                    "a data set of the blend has no samples", code="no_bins", where=f"datasets[{position}]"
                )
        self._orders = [
            SampleMapping(EpochOrder(dataset.sample_groups, self.seed + position, window=dataset.window))
            for position, dataset in enumerate(self.datasets)
        ]
        self._order = blend_order(self.weights, len(self))
        return self._order

    def close(self) -> None:
        """Close the files of all data sets; the next access opens them again."""
        for dataset in self.datasets:
            dataset.close()
