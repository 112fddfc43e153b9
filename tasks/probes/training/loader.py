"""Load probe rows for training: a Grain data set of crops, made from records.

Grain counts groups of 256 records, spreads them over processes and checkpoints them. One map shuffles, reads, samples
and packs a group, and a flat map over the iterator passes on its crops one by one. So each record is read once per
epoch (a flat map over a `MapDataset` would read it again for each of its crops), the state of an iterator is the
number of a group and a place in it, and resuming costs one group. Worker processes make groups, and the trainer's
process splits and batches them, so batches are the same with and without workers (`dataset.py`).

With short rows, overhead dominates: Grain's own shuffle, repeat, slice and batch took 37 us per record, a permutation
of record numbers takes next to nothing.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.errors import ConfigError, InputError
from schemas.probes import TRAIN
from tasks.probes.training.crops import Contexts, Crops
from tasks.probes.training.dataset import crop_dataset
from tasks.probes.training.locate import Paths
from tasks.probes.training.sampler import ORDER_KEY, ProbeRowSampler, Stream
from tasks.probes.training.source import ProbeRowDataSource, extra_module

__all__ = ["GROUP_ROWS", "GroupReader", "Order", "ProbeRowDataSource", "build_probe_dataset"]

GROUP_ROWS = 256

# Bytes held before records are thinned to the drawn measurements (a group may have 256 records of 8 MB), and rows
# read before their size is known.
_FIRST_ROWS = 16
_HELD_BYTES = 1 << 25
# Groups prepared ahead of the trainer, on one thread; a second thread only competed for the interpreter.
_GROUPS_AHEAD = 2


@dataclass(frozen=True)
class Order:
    """Compute the order in which one process reads the records of all epochs.

    Every epoch is a permutation of its own; process `index` of `count` takes every `count`-th record of the
    epochs laid end to end.

    Args:
        num_epochs: `None` repeats without end.
    """

    num_records: int
    num_epochs: int | None
    seed: int
    index: int = 0
    count: int = 1

    def __len__(self) -> int:
        total = sys.maxsize if self.num_epochs is None else self.num_records * self.num_epochs
        return len(range(self.index, total, self.count))

    def streams(self, start: int, stop: int) -> list[Stream]:
        """Return (epoch, record) of the records from place `start` to `stop`.

        >>> Order(3, 2, seed=0).streams(0, 6)
        [(0, 1), (0, 2), (0, 0), (1, 0), (1, 1), (1, 2)]
        """
        places = range(self.index + start * self.count, self.index + stop * self.count, self.count)
        epochs = (divmod(place, self.num_records) for place in places)
        return [(epoch, int(_permutation(self.num_records, self.seed, epoch)[at])) for epoch, at in epochs]


@functools.lru_cache(maxsize=4)
def _permutation(num_records: int, seed: int, epoch: int) -> NDArray[np.int64]:
    bits = np.random.Philox(key=np.array([seed, ORDER_KEY], np.uint64), counter=[0, 0, epoch, 0])
    return np.random.Generator(bits).permutation(num_records)


@dataclass(frozen=True)
class GroupReader:
    """Read a group of records, sample it, and lay out its crops."""

    source: ProbeRowDataSource
    sampler: ProbeRowSampler
    order: Order
    group_rows: int
    pack: bool

    def __len__(self) -> int:
        return -(-len(self.order) // self.group_rows)

    def __call__(self, group: int) -> Crops:
        """Return the `inputs…` of the crops of a group: int32[num_crops, crop_size] by name.

        Args:
            group: number of the group, from 0.
        """
        start = group * self.group_rows
        streams = self.order.streams(start, min(start + self.group_rows, len(self.order)))
        parts = [
            self.sampler.sample(rows, streams[first : first + len(rows)])
            for first, rows in self._chunks([record for _, record in streams])
        ]
        crops = self.sampler.crops(Contexts.concat(parts), streams[0], self.pack)
        # The targets share these arrays; a worker process would send them twice.
        return {name: values for name, values in crops.items() if name.startswith("inputs")}

    def _chunks(self, records: list[int]) -> Iterator[tuple[int, Sequence[dict[str, Any]]]]:
        """Yield rows of the group, as many as fit into memory, with the place of the first."""
        held: list[bytes] = []
        num_bytes = end = 0
        num_next = _FIRST_ROWS
        while end < len(records):
            found = self.source.read(records[end : end + num_next])
            end += len(found)
            held += found
            sizes = [len(record) for record in found]
            num_bytes += sum(sizes)
            num_next = max(_FIRST_ROWS, _HELD_BYTES // max(sizes))
            if num_bytes >= _HELD_BYTES or end == len(records):
                first = end - len(held)
                yield first, self.source.sampler_rows(records[first:end], held)
                held, num_bytes = [], 0


def build_probe_dataset(
    path: Paths,
    crop_size: int = 1024,
    *,
    batch_size: int | None,
    seed: int,
    pack: bool = True,
    shard: tuple[int, int] = (0, 1),
    split: str = TRAIN,
    num_epochs: int | None = 1,
    group_rows: int = GROUP_ROWS,
    drop_remainder: bool = True,
    sampler: ProbeRowSampler | None = None,
) -> Any:
    """Build a Grain `IterDataset` of MaxText dicts: int32[batch_size, crop_size] by name; see `Crops`.

    Its iterators have `get_state` and `set_state`. `.mp_prefetch(...)` spreads the work over processes and yields
    the same batches in the same order; call it before other transformations.

    Args:
        path: see `ProbeRowDataSource`.
        crop_size: tokens of a crop.
        batch_size: crops of a batch; `None` yields single crops, int32[crop_size].
        seed: seed of the order of records and of all draws, 0 to 2^32 - 1.
        pack: put several contexts into a crop; else one.
        shard: (index, count) of this process. Processes with the same seed divide the records of each epoch.
        split: which shards of a folder to read.
        num_epochs: how often each record is read; `None` repeats without end. Processes have about the same number
            of crops in an epoch, but not exactly; if all must take the same number of steps, use `None`.
        group_rows: records whose contexts are packed together. More records leave less padding: about 2% at 64,
            0.7% at 256.
        drop_remainder: leave out a last batch that is not full.
        sampler: other sampling rules; its own crop size and seed must equal `crop_size` and `seed`.

    Raises:
        ConfigError: an argument is out of range, or `path` does not name a shard.
        InputError: a file cannot be read, or there are no records.
        MissingExtraError: grain or array_record is not installed.
    """
    grain = extra_module("grain", "build_probe_dataset")
    index, count = shard
    for name, value, good, allowed in (
        ("shard", shard, 0 <= index < count, "(index, count) with 0 <= index < count"),
        ("batch_size", batch_size, batch_size is None or batch_size >= 1, "1 or more, or None"),
        ("num_epochs", num_epochs, num_epochs is None or num_epochs >= 1, "1 or more, or None"),
        ("group_rows", group_rows, group_rows >= 1, "1 or more"),
    ):
        if not good:
            raise ConfigError(f"{value!r} is out of range; allowed: {allowed}", where=name)
    sampler = sampler or ProbeRowSampler(crop_size=crop_size, seed=seed)
    if (sampler.crop_size, sampler.seed) != (crop_size, seed):
        raise ConfigError(
            f"the sampler has crop_size {sampler.crop_size} and seed {sampler.seed}, but the data set has "
            f"{crop_size} and {seed}; make them equal",
            where="sampler",
        )
    source = ProbeRowDataSource(path, split)
    if not len(source):
        raise InputError("there are no records", code="no_records", where=", ".join(source.paths))

    order = Order(len(source), num_epochs, seed, index, count)
    reader = GroupReader(source, sampler, order, group_rows, pack)
    groups = grain.MapDataset.range(len(reader)).map(reader)
    ahead = grain.ReadOptions(num_threads=1, prefetch_buffer_size=_GROUPS_AHEAD)
    return crop_dataset(groups.to_iter_dataset(ahead), batch_size, drop_remainder)
