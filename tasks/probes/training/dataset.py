"""Split groups of crops into single crops, and batch them: in the trainer's process, whoever makes the groups.

`mp_prefetch` of Grain gives each worker every n-th element of the innermost data set, with all that follows it. Had
the workers also batched, a batch would hold the crops of one worker's groups, and each worker would drop a remainder
of its own: 448 of 512 crops came through with 3 workers and batches of 64. Here the workers make groups alone. Grain
takes one group of each worker in turn, which is their order without workers, and what follows sees no difference.
"""

from __future__ import annotations

import functools
from typing import Any

from schemas.errors import ConfigError
from tasks.probes.training.crops import Crops, split_crops, with_targets
from tasks.probes.training.source import extra_module


class _Split:
    """Split the crops of a group into single crops."""

    def flat_map(self, crops: Crops) -> list[Crops]:
        return split_crops(with_targets(crops))


def crop_dataset(groups: Any, batch_size: int | None, drop_remainder: bool) -> Any:
    """Return a Grain `IterDataset` of the crops of all groups, in order, single or in batches.

    Args:
        groups: an `IterDataset` of `inputs…` of the crops of a group, int32[num_crops, crop_size] by name.
        batch_size: crops of a batch; `None` yields single crops.
        drop_remainder: leave out a last batch that is not full.
    """
    return _dataset_class()(groups, batch_size, drop_remainder)


@functools.cache
def _dataset_class() -> Any:
    """Define the class once Grain is needed: importing it takes as long as all that the readers import."""
    grain = extra_module("grain", "build_probe_dataset")

    class CropDataset(grain.IterDataset):  # type: ignore[misc, name-defined]
        """Yield crops or batches of them; see `crop_dataset`."""

        def __init__(self, groups: Any, batch_size: int | None, drop_remainder: bool) -> None:
            crops = grain.experimental.FlatMapIterDataset(groups, _Split())
            if batch_size is not None:
                crops = crops.batch(batch_size, drop_remainder=drop_remainder)
            super().__init__(crops)
            self._groups = groups
            self._how = (batch_size, drop_remainder)

        def __iter__(self) -> Any:
            return self._parent.__iter__()

        def __str__(self) -> str:
            return f"CropDataset(batch_size={self._how[0]}, drop_remainder={self._how[1]})"

        def mp_prefetch(
            self, options: Any = None, worker_init_fn: Any = None, sequential_slice: bool = False
        ) -> Any:
            """Make the groups in worker processes; the batches and their order stay the same."""
            if sequential_slice:
                raise ConfigError(
                    "True would give every worker a run of groups, and change the order of the batches; leave it out",
                    where="mp_prefetch.sequential_slice",
                )
            return CropDataset(self._groups.mp_prefetch(options, worker_init_fn), *self._how)

        def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
            # Grain calls this in each of several workers whose data set goes on after this one.
            raise ConfigError(
                "it stands behind another transformation, so each worker would batch a part of the groups on its "
                "own, and drop a remainder; call it first: build_probe_dataset(...).mp_prefetch(...).map(...)",
                where="mp_prefetch",
            )

    return CropDataset
