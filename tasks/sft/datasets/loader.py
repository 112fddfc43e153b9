"""Load samples of packed data sets for trainers: shuffled, divided among ranks, and exactly resumable.

A loader with workers fetches ahead of the training loop, so neither the data set nor the sampler can know how far
the loop is. `PackedLoader` counts the batches it yields; its `state_dict` belongs in the trainer's checkpoint:

    sampler = PackedSampler(dataset, seed=0, rank=rank, world_size=world_size)
    loader = PackedLoader(dataset, batch_size=8, sampler=sampler, num_workers=4)
    loader.load_state_dict(checkpoint["loader"])   # when resuming; the number of workers may differ
    for epoch in range(loader.epoch, epochs):
        for batch in loader:
            ...
            checkpoint["loader"] = loader.state_dict()

With your own loader, `PackedSampler` is the sampler, and the training loop reports what it has consumed:

    sampler.set_epoch(epoch)
    sampler.state_dict(consumed=steps_of_this_epoch * batch_size)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from schemas.errors import ConfigError, MissingExtraError
from tasks.sft.datasets.base import SftDataset
from tasks.sft.datasets.order import EpochOrder, SampleNumber, Share

# At least this many places of the order are computed at a time; any of them needs a whole window's permutation.
_BLOCK = 4096


class PackedSampler:
    """Yield the sample numbers of one rank, epoch by epoch; a `sampler` for `torch.utils.data.DataLoader`.

    The order depends on data set, seed, window, epoch, rank and world size; not on batch size or workers. Numbers of
    a data set whose epochs differ (a blend, or `max_num_samples`) carry their epoch, see `SampleNumber`.

    Args:
        dataset: the data set to sample.
        shuffle: shuffle inside windows that respect row groups; otherwise samples come in order.
        seed: seed of the order.
        window: samples shuffled together; `None`: the data set's own, which is also how many it keeps in memory.
        rank, world_size: each rank gets an equal share of the samples.
        remainder: `pad` adds padding samples, `drop` leaves samples out; see `Share`.

    Raises:
        ConfigError: an argument is out of range.
    """

    def __init__(
        self,
        dataset: SftDataset,
        *,
        shuffle: bool = True,
        seed: int = 0,
        window: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        remainder: str = "pad",
    ) -> None:
        share = Share(rank, world_size, remainder)
        self._order = EpochOrder(
            dataset.sample_groups,
            seed,
            shuffle=shuffle,
            window=dataset.window if window is None else window,
            share=share,
        )
        self._epochs_differ = dataset.epochs_differ
        self.epoch = 0
        self._start = self._position = 0

    def __len__(self) -> int:
        """Samples of this rank in an epoch."""
        return len(self._order)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration, starting at its beginning."""
        if epoch != self.epoch:
            self.epoch, self._start, self._position = epoch, 0, 0

    def __iter__(self) -> Iterator[int]:
        """Yield the epoch's samples; the first time after `load_state_dict`, from the saved position."""
        start, self._start = self._start, 0
        self._position = start
        step = max(_BLOCK, self._order.window)
        for low in range(start, len(self), step):
            for sample in self._order.places(self.epoch, low, min(low + step, len(self))).tolist():
                self._position += 1
                yield SampleNumber(sample, self.epoch) if self._epochs_differ else sample

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """Return the position of the training loop as plain numbers and words.

        Args:
            consumed: samples of this epoch that the loop has received, including those before a resume; `None`: all
                that were yielded, which is correct without workers.
        """
        return self.state_at(self.epoch, self._position if consumed is None else consumed)

    def state_at(self, epoch: int, position: int) -> dict[str, Any]:
        """Return the state after `position` samples of an epoch."""
        order = self._order
        return {
            "epoch": epoch,
            "position": position,
            "bins": order.num_bins,
            "seed": order.seed,
            "shuffle": order.shuffle,
            "window": order.window,
            "rank": order.share.rank,
            "world_size": order.share.world_size,
            "remainder": order.share.remainder,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume where `state` was saved.

        Raises:
            ConfigError: `other_state`, it was saved with other data or other arguments.
        """
        epoch, position = state.get("epoch"), state.get("position")
        if not isinstance(epoch, int) or not isinstance(position, int) or not 0 <= position <= len(self):
            raise ConfigError(f"not a sampler state: {state}", code="other_state")
        here = self.state_at(epoch, position)
        differ = [name for name in here if state.get(name) != here[name]]
        if differ:
            details = ", ".join(f"{name} {state.get(name)} instead of {here[name]}" for name in differ)
            raise ConfigError(
                f"the state belongs to a different order: {details}; resume with the same data and arguments",
                code="other_state",
            )
        self.epoch, self._start, self._position = epoch, position, position


class PackedLoader:
    """Load batches of one rank through a torch `DataLoader`, with exact resume; see the module docstring for usage.

    Each iteration is an epoch, or the rest of one; the next iteration is the next epoch.

    Args:
        dataset: its `collate_fn` makes the batches.
        batch_size: samples per batch.
        sampler: the order and this rank's share; by default `PackedSampler(dataset)`.
        loader_options: `num_workers`, `persistent_workers`, `multiprocessing_context`, `pin_memory`, `drop_last` and
            other arguments of a `DataLoader`.

    Raises:
        MissingExtraError: torch is not installed.
    """

    def __init__(
        self,
        dataset: SftDataset,
        batch_size: int,
        sampler: PackedSampler | None = None,
        **loader_options: Any,
    ) -> None:
        try:
            from torch.utils.data import DataLoader
        except ImportError as error:
            raise MissingExtraError.of("torch", "torch", "PackedLoader") from error
        self._sampler = sampler or PackedSampler(dataset)
        self._batch_size = batch_size
        self._loader: Any = DataLoader(
            dataset,  # type: ignore[arg-type]
            batch_size,
            sampler=self._sampler,
            collate_fn=loader_options.pop("collate_fn", dataset.collate_fn),
            **loader_options,
        )
        self.epoch = 0
        self._position = 0

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        self._sampler.load_state_dict(self.state_dict())
        for batch in self._loader:
            self._position = min(self._position + self._batch_size, len(self._sampler))
            yield batch
        self.epoch, self._position = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last yielded batch, as plain numbers and words."""
        return self._sampler.state_at(self.epoch, self._position)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume where `state` was saved, with any number of workers and any batch size.

        Raises:
            ConfigError: `other_state`, it was saved with other data or other arguments.
        """
        self._sampler.load_state_dict(state)
        self.epoch, self._position = state["epoch"], state["position"]
