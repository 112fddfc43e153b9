"""Read intervals of a run.

The file is opened for each read, as a shard reads from more runs than a process may hold open.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.probes.runs.layout import BLOCK, ITEM, RECORD
from tasks.probes.runs.place import RunRef, damaged
from tasks.spool.layout import padded
from tasks.spool.reader import SpoolReader
from tasks.storage.reading import open_ranges


@dataclass(frozen=True)
class Measurements:
    """Hold consecutive measurements of a run.

    Attributes:
        times: int64[n], microseconds; `rtts`: float32[n].
        codes: int32[n], indices into `texts`, the destination addresses, in which some may be equal.
    """

    times: NDArray[np.int64]
    codes: NDArray[np.int32]
    rtts: NDArray[np.float32]
    texts: pa.StringArray

    def slice(self, low: int, high: int) -> Measurements:
        """Return measurements `low` to `high`."""
        return Measurements(self.times[low:high], self.codes[low:high], self.rtts[low:high], self.texts)

    def filter(self, kept: NDArray[np.bool_]) -> Measurements:
        """Return the measurements that are marked."""
        return Measurements(self.times[kept], self.codes[kept], self.rtts[kept], self.texts)

    def dst_lengths(self) -> NDArray[np.int64]:
        """Return the bytes of each measurement's destination address: int64[n]."""
        lengths: NDArray[np.int64] = pc.binary_length(self.texts).to_numpy().astype(np.int64)[self.codes]
        return lengths


class RunReader:
    """A run, of which intervals are read.

    Raises:
        IntegrityError: `broken_spool`: the file is damaged.
    """

    def __init__(self, root: Path, ref: RunRef) -> None:
        path = ref.found(root)
        self.spool = SpoolReader(_Ranges(path), RECORD, ITEM, str(path))
        [count] = self.spool.read_extra(0, 1, np.dtype("<i8")).tolist()
        self._blocks = self.spool.read_extra(8, count, BLOCK)
        self._firsts = self._blocks["first"].astype(np.int64)

    def records(self, low: int, high: int) -> NDArray[Any]:
        """Read the records with positions in `[low, high)`."""
        return self.spool.records(low, high)

    def read(self, first: int, end: int) -> Measurements:
        """Read the measurements `[first, end)`, at least one."""
        items = self.spool.items(first, end)
        low = int(np.searchsorted(self._firsts, first, "right")) - 1
        high = int(np.searchsorted(self._firsts, end, "left"))
        blocks = self._blocks[low:high]
        texts = self._texts(blocks)
        codes = items["dst"]
        if len(texts) > 1:
            edges = np.concatenate([[first], self._firsts[low + 1 : high], [end]])
            bases = np.cumsum([0, *(len(some) for some in texts[:-1])]).astype(np.int32)
            codes = codes + np.repeat(bases, np.diff(edges))
        joined = texts[0] if len(texts) == 1 else pa.concat_arrays(texts)
        if codes.min() < 0 or codes.max() >= len(joined):
            raise self.spool.broken("a measurement has no address")
        return Measurements(items["time"], codes, items["rtt"], joined)

    def _texts(self, blocks: NDArray[Any]) -> list[pa.StringArray]:
        """Read the addresses of consecutive blocks, which lie one after the other."""
        begin = int(blocks["at"][0])
        last = blocks[-1]
        end = int(last["at"]) + padded(4 * (int(last["texts"]) + 1)) + padded(int(last["bytes"]))
        data = self.spool.read_extra(begin, end - begin, np.dtype(np.uint8))
        found = []
        for _, at, texts, size in blocks.tolist():
            ends = pa.py_buffer(data[at - begin :][: 4 * (texts + 1)])
            characters = data[at - begin + padded(4 * (texts + 1)) :][:size]
            found.append(pa.StringArray.from_buffers(texts, ends, pa.py_buffer(characters)))
        return found


class _Ranges:
    """A file that is opened for each read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with open_ranges(path) as file:
                self.bytes = file.bytes
        except OSError as error:
            raise damaged(path, str(error.strerror)) from error

    def read(self, at: int, size: int) -> bytes:
        """See `tasks.storage.reading.Ranges`."""
        try:
            with open_ranges(self._path) as file:
                return file.read(at, size)
        except OSError as error:
            raise damaged(self._path, str(error.strerror)) from error
