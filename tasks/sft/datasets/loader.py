"""Samples of packed data sets for trainers: shuffled, shared out by rank, and resumed exactly.

A loader with workers fetches ahead of the training loop, so neither the data set nor the sampler can know how far
the loop is. `PackedLoader` counts the batches it hands out; its `state_dict` belongs into the trainer's checkpoint:

    sampler = PackedSampler(dataset, seed=0, rank=rank, world_size=world_size)
    loader = PackedLoader(dataset, batch_size=8, sampler=sampler, num_workers=4)
    loader.load_state_dict(checkpoint["loader"])   # when resuming; the number of workers may differ
    for epoch in range(loader.epoch, epochs):
        for batch in loader:
            ...
            checkpoint["loader"] = loader.state_dict()

With a loader of one's own, `PackedSampler` is the sampler, and the training loop says what it has consumed:

    sampler.set_epoch(epoch)
    sampler.state_dict(consumed=steps_of_this_epoch * batch_size)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from schemas.errors import ConfigError, MissingExtraError
from tasks.sft.datasets.base import SftDataset
from tasks.sft.datasets.order import EpochOrder, Share

# Places of the order computed at a time, at least; a window's permutation is made whole for any of them.
_BLOCK = 4096


class PackedSampler:
    """The sample numbers of one rank, epoch by epoch; a `sampler` for `torch.utils.data.DataLoader`.

    The order depends on data set, seed, window, epoch, rank and world size; not on batch size or workers.

    Args:
        dataset: what is sampled.
        shuffle: shuffle inside windows that respect row groups; otherwise samples come in order.
        seed: of the order.
        window: samples shuffled together; `None`: the data set's own, which is also how many it holds.
        rank, world_size: each rank has its share of the samples, all equally many.
        remainder: `pad` fills up with padding samples, `drop` leaves samples out; see `Share`.

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
        self.epoch = 0
        self._start = self._position = 0

    def __len__(self) -> int:
        """Samples of this rank in an epoch."""
        return len(self._order)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration goes through, from its beginning."""
        if epoch != self.epoch:
            self.epoch, self._start, self._position = epoch, 0, 0

    def __iter__(self) -> Iterator[int]:
        """The epoch's samples; after `load_state_dict`, the first time, from where that was."""
        start, self._start = self._start, 0
        self._position = start
        step = max(_BLOCK, self._order.window)
        for low in range(start, len(self), step):
            for sample in self._order.places(self.epoch, low, min(low + step, len(self))).tolist():
                self._position += 1
                yield sample

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """Where the training loop stands: plain numbers and words.

        Args:
            consumed: samples of this epoch that the loop has got, those before a resume included; `None`: as many as
                were handed out, which is right without workers.
        """
        return self.state_at(self.epoch, self._position if consumed is None else consumed)

    def state_at(self, epoch: int, position: int) -> dict[str, Any]:
        """The state after `position` samples of an epoch."""
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
        """Go on where `state` was taken.

        Raises:
            ConfigError: it was taken over other data, or with other arguments.
        """
        epoch, position = state.get("epoch"), state.get("position")
        if not isinstance(epoch, int) or not isinstance(position, int) or not 0 <= position <= len(self):
            raise ConfigError(f"no state of a sampler: {state}", code="other_state")
        here = self.state_at(epoch, position)
        differ = [name for name in here if state.get(name) != here[name]]
        if differ:
            details = ", ".join(f"{name} {state.get(name)} instead of {here[name]}" for name in differ)
            raise ConfigError(f"the state is of another order: {details}", code="other_state")
        self.epoch, self._start, self._position = epoch, position, position


class PackedLoader:
    """Batches of one rank through a torch `DataLoader`, with exact resume; see the module's text for its use.

    Each iteration is an epoch, or what is left of one; then the next epoch is due.

    Args:
        dataset: batches are made by its `collate_fn`.
        batch_size: samples of a batch.
        sampler: the order and this rank's share; default `PackedSampler(dataset)`.
        loader_options: `num_workers`, `persistent_workers`, `multiprocessing_context`, `pin_memory`, `drop_last` and
            whatever else a `DataLoader` takes.

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
        """Batches of an epoch."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        self._sampler.load_state_dict(self.state_dict())
        for batch in self._loader:
            self._position = min(self._position + self._batch_size, len(self._sampler))
            yield batch
        self.epoch, self._position = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Where the training loop stands: after the last batch it was given. Plain numbers and words."""
        return self._sampler.state_at(self.epoch, self._position)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken; with as many or other workers, and any batch size.

        Raises:
            ConfigError: it was taken over other data, or with other arguments.
        """
        self._sampler.load_state_dict(state)
        self.epoch, self._position = state["epoch"], state["position"]
