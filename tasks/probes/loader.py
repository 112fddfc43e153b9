"""Probe rows for training: a random-access source of records, and a Grain data set of crops made from them.

What Grain counts, spreads over processes and checkpoints are groups of 256 records. One map shuffles, reads, samples
and packs a group, and a flat map over the iterator hands on its crops one by one. So each record is read once an
epoch (a flat map over a `MapDataset` reads it again for each crop it gives), the state of an iterator is the
number of a group and a place in it, and to resume costs one group.

Short rows cost their overhead. A record read alone takes 79 us, one of a batch 17; its two Arrow streams opened
alone 55, with others 5 (`tasks.probes.streams`); Grain's own shuffle, repeat, slice and batch took 37, a
permutation next to nothing.
"""

from __future__ import annotations

import bisect
import functools
import importlib
import itertools
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.errors import ConfigError, InputError, MissingExtraError
from schemas.probes import TRAIN, measurements_schema, record_schema
from tasks.probes.crops import Contexts, Crops
from tasks.probes.locate import Paths, find_shards
from tasks.probes.sampler import ORDER_KEY, ProbeRowSampler, Stream
from tasks.probes.streams import read_batches

GROUP_ROWS = 256

# The measurements, about 30 bytes each, that are held before they are thinned to the drawn ones (a group may have
# 256 records of 8 MB), and the rows read before their size is known.
_FIRST_ROWS = 16
_HELD_MEASUREMENTS = 1_000_000
# Groups made ahead of the trainer, on a thread beside it; a second thread only fought for the interpreter.
_GROUPS_AHEAD = 2
# Read ahead is for reading in order.
_READER_OPTIONS = "readahead_buffer_size:0"
_READER_BUFFER = 32_768


def _extra(module: str, purpose: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError.of(module.split(".")[0], "probes", purpose) from error


class ProbeRowDataSource:
    """The records of probe shards, by number; files are opened at the first look.

    An item is a dict: `src_id`, `src_addr`, `measurements` (a RecordBatch; `.to_pylist()` gives dicts),
    `n_measurements`, and `metadata` with `time_span_seconds`, `first_timestamp`, `last_timestamp`.

    Picklable, before and after use, and safe to share between threads.

    Args:
        path: a file, a list of files, a folder, a glob, a run or an output folder.
        split: which shards of a folder, by the beginning of their names.

    Raises:
        ConfigError: `path` names no shard.
        InputError: at the first look, a file is not a whole ArrayRecord file.
    """

    def __init__(self, path: Paths, split: str = TRAIN) -> None:
        self._paths = find_shards(path, split)
        self._readers: list[Any] = []
        self._ends: list[int] = []
        self._lock = threading.Lock()

    @property
    def paths(self) -> tuple[str, ...]:
        """The files, in order."""
        return self._paths

    def __len__(self) -> int:
        self._open()
        return self._ends[-1]

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Several records at once; five times as fast as one by one.

        Raises:
            IndexError: an index below 0 or not below `len`.
            InputError: a record is damaged, or not one of ours.
        """
        if not len(indices):
            return []
        table, measurements = self._rows(indices)
        columns = table.select(_ITEM_COLUMNS).to_pydict()
        return [
            {
                "src_id": src_id,
                "src_addr": src_addr,
                "measurements": batch,
                "n_measurements": num_measurements,
                "metadata": {"time_span_seconds": span, "first_timestamp": first, "last_timestamp": last},
            }
            for src_id, src_addr, num_measurements, span, first, last, batch in zip(
                *columns.values(), measurements, strict=True
            )
        ]

    def sampler_rows(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Items with `src_addr` and `measurements` alone, which is all a sampler looks at; 10 us each cheaper.

        Raises:
            IndexError, InputError: as `__getitems__`.
        """
        table, measurements = self._rows(indices)
        return [
            {"src_addr": src_addr, "measurements": batch}
            for src_addr, batch in zip(table["src_addr"].to_pylist(), measurements, strict=True)
        ]

    def __repr__(self) -> str:
        return f"ProbeRowDataSource({list(self._paths)!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {"paths": self._paths}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._paths = state["paths"]
        self._readers, self._ends, self._lock = [], [], threading.Lock()

    def _open(self) -> None:
        with self._lock:
            if self._ends:
                return
            module = _extra("array_record.python.array_record_module", "reading probe rows")
            readers = [
                module.ArrayRecordReader(
                    path, options=_READER_OPTIONS, file_reader_buffer_size=_READER_BUFFER
                )
                for path in self._paths
            ]
            for path, reader in zip(self._paths, readers, strict=True):
                if not reader.ok():
                    raise InputError(
                        "this is not a whole ArrayRecord file: it is cut short, or something else",
                        code="bad_array_record",
                        where=path,
                    )
            self._readers = readers
            self._ends = list(itertools.accumulate(reader.num_records() for reader in readers))

    def _place(self, index: int) -> tuple[int, int]:
        """The file of a record, and its number there."""
        file = bisect.bisect_right(self._ends, index)
        return file, index - (self._ends[file - 1] if file else 0)

    def _read(self, indices: list[int]) -> list[bytes]:
        num_records = len(self)
        for index in indices:
            if not 0 <= index < num_records:
                raise IndexError(f"record {index}; there are {num_records}")
        records: list[bytes] = [b""] * len(indices)
        by_file: dict[int, list[tuple[int, int]]] = {}
        for slot, index in enumerate(indices):
            file, number = self._place(index)
            by_file.setdefault(file, []).append((slot, number))
        for file, wanted in by_file.items():
            try:
                found = self._readers[file].read([number for _, number in wanted])
            except RuntimeError as error:
                raise InputError(str(error), code="bad_array_record", where=self._paths[file]) from error
            for (slot, _), record in zip(wanted, found, strict=True):
                records[slot] = record
        return records

    def _rows(self, indices: Sequence[int]) -> tuple[pa.Table, list[pa.RecordBatch]]:
        """The rows of some records, and the measurements of each."""

        def where(place: int) -> str:
            file, number = self._place(int(indices[place]))
            return f"{self._paths[file]}:{number}"

        records = self._read([int(index) for index in indices])
        rows = read_batches(records, record_schema(), where)
        for place, row in enumerate(rows):
            if row.num_rows != 1 or row.column(_MEASUREMENTS).null_count:
                message = f"{row.num_rows} rows, or no measurements; expected one row"
                raise InputError(message, code="bad_record", where=where(place))
        table = pa.Table.from_batches(rows)
        measurements = read_batches(table["measurements"].to_pylist(), measurements_schema(), where)
        for place, count in enumerate(table["n_measurements"].to_pylist()):
            if count != measurements[place].num_rows:
                message = f"n_measurements is {count}, but there are {measurements[place].num_rows}"
                raise InputError(message, code="bad_record", where=where(place))
        return table, measurements


_MEASUREMENTS = record_schema().get_field_index("measurements")
_ITEM_COLUMNS = [
    "src_id",
    "src_addr",
    "n_measurements",
    "time_span_seconds",
    "first_timestamp",
    "last_timestamp",
]


@dataclass(frozen=True)
class Order:
    """The order in which one process reads the records of all epochs.

    Every epoch is a permutation of its own; process `index` of `count` takes every `count`-th record of the
    epochs laid end to end.

    Args:
        num_epochs: `None` for ever.
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
        """(epoch, record) of the records from place `start` to `stop`.

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
    """The crops of a group of records: read, sampled, laid out."""

    source: ProbeRowDataSource
    sampler: ProbeRowSampler
    order: Order
    group_rows: int
    pack: bool

    def __len__(self) -> int:
        return -(-len(self.order) // self.group_rows)

    def __call__(self, group: int) -> Crops:
        """int32[num_crops, crop_size] by name.

        Args:
            group: its number, from 0.
        """
        start = group * self.group_rows
        streams = self.order.streams(start, min(start + self.group_rows, len(self.order)))
        parts = [
            self.sampler.sample(rows, streams[first : first + len(rows)])
            for first, rows in self._chunks([record for _, record in streams])
        ]
        return self.sampler.crops(Contexts.concat(parts), streams[0], self.pack)

    def _chunks(self, records: list[int]) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """Rows of the group, as many together as may be held, after the place of their first."""
        held: list[dict[str, Any]] = []
        num_held = end = 0
        num_next = _FIRST_ROWS
        while end < len(records):
            rows = self.source.sampler_rows(records[end : end + num_next])
            end += len(rows)
            held += rows
            sizes = [len(row["measurements"]) for row in rows]
            num_held += sum(sizes)
            num_next = max(_FIRST_ROWS, _HELD_MEASUREMENTS // max(1, *sizes))
            if num_held >= _HELD_MEASUREMENTS or end == len(records):
                yield end - len(held), held
                held, num_held = [], 0


class _Split:
    """A flat map from the crops of a group to single crops."""

    def flat_map(self, crops: Crops) -> list[Crops]:
        return [{name: values[i] for name, values in crops.items()} for i in range(len(crops["inputs"]))]


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
    """A Grain `IterDataset` of MaxText dicts: int32[batch_size, crop_size] by name, see `tasks.probes.crops`.

    Its iterators have `get_state` and `set_state`; `.mp_prefetch(...)` spreads the groups over processes.

    Args:
        path: see `ProbeRowDataSource`.
        crop_size: tokens of a crop.
        batch_size: crops of a batch; `None` gives single crops, int32[crop_size].
        seed: of the order of records and of all draws, 0 to 2^32 - 1.
        pack: several contexts a crop; else one.
        shard: (index, count) of this process. Processes that share a seed share out the records of each epoch.
        split: which shards of a folder.
        num_epochs: how often each record is read; `None` for ever. Processes have about equally many crops in
            an epoch, not exactly; where all must make equally many steps, take `None`.
        group_rows: records whose contexts are packed together. More pad less: about 2% at 64, 0.7% at 256.
        drop_remainder: leave out a last batch that is not full.
        sampler: other sampling rules; it has a crop size and seed of its own, which must be these.

    Raises:
        ConfigError: an argument is out of range, or `path` names no shard.
        InputError: a file cannot be read, or there is no record.
        MissingExtraError: grain or array_record is not installed.
    """
    grain = _extra("grain", "build_probe_dataset")
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
            f"crop_size {sampler.crop_size} and seed {sampler.seed}; the data set has {crop_size} and {seed}",
            where="sampler",
        )
    source = ProbeRowDataSource(path, split)
    if not len(source):
        raise InputError("there is no record", code="no_records", where=", ".join(source.paths))

    order = Order(len(source), num_epochs, seed, index, count)
    reader = GroupReader(source, sampler, order, group_rows, pack)
    groups = grain.MapDataset.range(len(reader)).map(reader)
    ahead = grain.ReadOptions(num_threads=1, prefetch_buffer_size=_GROUPS_AHEAD)
    crops = grain.experimental.FlatMapIterDataset(groups.to_iter_dataset(ahead), _Split())
    return crops if batch_size is None else crops.batch(batch_size, drop_remainder=drop_remainder)
