"""Data sets blended by weight: every prefix has the right share of each, small ones come round again."""

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

    After any number of samples each data set is within one of its share. Of each the samples come in a seeded order,
    epoch after epoch, each a permutation: a data set whose share is larger than it is comes round again, one whose
    share is smaller is not finished.

    Args:
        datasets: what is blended; their own mapping, if any, is kept.
        weights: any scale; `None`: in proportion to their sizes, so that each sample comes once.
        max_num_samples: how many samples there are; `None`: as many as in all data sets together.
        seed: of the order in each data set.
        collate_fn: makes batches; default that of the first data set.
        window: see `SftDataset`.

    Raises:
        ConfigError: no data set, or a weight that is none; on the first look, a data set is empty.
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
                "give at least one data set, and as many weights or none",
                where="weights",
            )
        self.datasets = list(datasets)
        self.collate_fn = collate_fn or self.datasets[0].collate_fn
        self._weights = None if weights is None else normalised(weights)
        self._order: tuple[NDArray[np.int32], NDArray[np.int64]] | None = None
        self._orders: list[SampleMapping] = []

    @property
    def weights(self) -> list[float]:
        """They add up to 1."""
        if self._weights is None:
            self._weights = normalised([len(dataset) for dataset in self.datasets])
        return self._weights

    def __len__(self) -> int:
        return self.num_bins

    @property
    def num_bins(self) -> int:
        """Samples of the blend. Its own order is the mapping: sample i is bin i."""
        if self.max_num_samples is not None:
            return self.max_num_samples
        return sum(len(dataset) for dataset in self.datasets)

    @property
    def bin_groups(self) -> NDArray[np.int64]:
        return np.append(np.arange(0, len(self), self.window), len(self))

    def _mapped(self, sample: int) -> int:
        return sample

    def bin(self, number: int) -> Bin:
        sources, numbers = self._order or self._blend()
        source = int(sources[number])
        sample = self._orders[source][int(numbers[number])]
        item = self.datasets[source][sample]
        return item["input_ids"], item["seq_boundaries"], item["loss_mask"]

    def source(self, number: int) -> int:
        """Which data set sample `number` is from."""
        return int((self._order or self._blend())[0][number])

    def _blend(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        for position, dataset in enumerate(self.datasets):
            if not len(dataset):
                raise InputError(
                    "a blended data set has no sample", code="no_bins", where=f"datasets[{position}]"
                )
        self._orders = [
            SampleMapping(EpochOrder(dataset.sample_groups, self.seed + position, window=dataset.window))
            for position, dataset in enumerate(self.datasets)
        ]
        self._order = blend_order(self.weights, len(self))
        return self._order

    def close(self) -> None:
        for dataset in self.datasets:
            dataset.close()
