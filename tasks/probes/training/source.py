"""Read records of probe shards in any order.

With short records, overhead dominates. Reading one alone takes 79 us, in a batch 17; opening its two Arrow streams
takes 55 us alone, and 5 together with others (`tasks.probes.records.streams`).
"""

from __future__ import annotations

import bisect
import importlib
import itertools
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from schemas.errors import InputError, MissingExtraError
from schemas.probes import TRAIN, measurements_schema, record_schema
from tasks.probes.records.plain import plain_rows
from tasks.probes.records.streams import read_batches
from tasks.probes.training.locate import Paths, find_shards

# Reading ahead only helps sequential readers.
_READER_OPTIONS = "readahead_buffer_size:0"
# A short record has 1 KB: with a buffer four times as large, reading one takes a quarter longer.
_READER_BUFFER = 8_192


def extra_module(module: str, purpose: str) -> Any:
    """Import a module of the `probes` extra.

    Raises:
        MissingExtraError: the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError.of(module.split(".")[0], "probes", purpose) from error


class ProbeRowDataSource:
    """Read the records of probe shards by number; files are opened on first use.

    An item is a dict: `src_id`, `src_addr`, `measurements`, `n_measurements`, and `metadata` with
    `time_span_seconds`, `first_timestamp`, `last_timestamp`. `measurements` is a RecordBatch of `event_time`,
    `dst_addr`, `ip_version`, `rtt` in ms (negative = failed), and `src_addr`, which is the same in all rows and not
    stored; its `.to_pylist()` returns dicts that an encoder of single measurements takes as they are.

    Picklable, before and after use, and safe to share between threads.

    Args:
        path: a file, a list of files, a folder, a glob, a run or an output folder.
        split: which shards of a folder to read, by the start of their names.

    Raises:
        ConfigError: `path` does not name a shard.
        InputError: on first use, a file is not a complete ArrayRecord file.
    """

    def __init__(self, path: Paths, split: str = TRAIN) -> None:
        self._paths = find_shards(path, split)
        self._readers: list[Any] = []
        self._ends: list[int] = []
        self._lock = threading.Lock()

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the files, in order."""
        return self._paths

    def __len__(self) -> int:
        self._open()
        return self._ends[-1]

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Read several records at once, five times as fast as one by one.

        Raises:
            IndexError: an index is negative, or not less than `len`.
            InputError: a record is damaged, or is not a probe record.
        """
        if not len(indices):
            return []
        table, measurements = self._rows(indices, self.read(indices))
        columns = table.select(_ITEM_COLUMNS).to_pydict()
        return [
            {
                "src_id": src_id,
                "src_addr": src_addr,
                "measurements": _with_source(batch, src_addr),
                "n_measurements": num_measurements,
                "metadata": {"time_span_seconds": span, "first_timestamp": first, "last_timestamp": last},
            }
            for src_id, src_addr, num_measurements, span, first, last, batch in zip(
                *columns.values(), measurements, strict=True
            )
        ]

    def sampler_rows(
        self, indices: Sequence[int], records: Sequence[bytes] | None = None
    ) -> Sequence[dict[str, Any]]:
        """Read items with only `src_addr` and `measurements` as stored, which is all a sampler needs, and cheaper.

        Args:
            records: the result of `read(indices)`, if they have been read already.

        Raises:
            IndexError, InputError: as `__getitems__`.
        """
        records = self.read(indices) if records is None else records
        plain = plain_rows(records)
        if plain is not None:
            return plain
        table, measurements = self._rows(indices, records)
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
            module = extra_module("array_record.python.array_record_module", "reading probe rows")
            readers = [
                module.ArrayRecordReader(
                    path, options=_READER_OPTIONS, file_reader_buffer_size=_READER_BUFFER
                )
                for path in self._paths
            ]
            for path, reader in zip(self._paths, readers, strict=True):
                if not reader.ok():
                    raise InputError(
                        "not a complete ArrayRecord file: it is cut short, or has another format",
                        code="bad_array_record",
                        where=path,
                    )
            self._readers = readers
            self._ends = list(itertools.accumulate(reader.num_records() for reader in readers))

    def _place(self, index: int) -> tuple[int, int]:
        """Return the file of a record, and its number there."""
        file = bisect.bisect_right(self._ends, index)
        return file, index - (self._ends[file - 1] if file else 0)

    def read(self, indices: Sequence[int]) -> list[bytes]:
        """Read the bytes of some records.

        Raises:
            IndexError, InputError: as `__getitems__`.
        """
        num_records = len(self)
        for index in indices:
            if not 0 <= index < num_records:
                raise IndexError(f"there is no record {index}; the data set has {num_records}")
        records: list[bytes] = [b""] * len(indices)
        by_file: dict[int, list[tuple[int, int]]] = {}
        for slot, index in enumerate(indices):
            file, number = self._place(int(index))
            by_file.setdefault(file, []).append((slot, number))
        for file, wanted in by_file.items():
            try:
                found = self._readers[file].read([number for _, number in wanted])
            except RuntimeError as error:
                raise InputError(str(error), code="bad_array_record", where=self._paths[file]) from error
            for (slot, _), record in zip(wanted, found, strict=True):
                records[slot] = record
        return records

    def _rows(
        self, indices: Sequence[int], records: Sequence[bytes]
    ) -> tuple[pa.Table, list[pa.RecordBatch]]:
        """Parse the rows of some records, and the measurements of each."""

        def where(place: int) -> str:
            file, number = self._place(int(indices[place]))
            return f"{self._paths[file]}:{number}"

        rows = read_batches(records, record_schema(), where)
        for place, row in enumerate(rows):
            if row.num_rows != 1:
                message = f"{row.num_rows} rows; expected one"
                raise InputError(message, code="bad_record", where=where(place))
        table = pa.Table.from_batches(rows)
        for name, column in zip(table.column_names, table.columns, strict=True):
            if column.null_count:
                place = column.is_null().index(True).as_py()
                raise InputError(f"{name} is null", code="bad_record", where=where(place))
        measurements = read_batches(table["measurements"].to_pylist(), measurements_schema(), where)
        counts = table["n_measurements"].to_pylist()
        found = [batch.num_rows for batch in measurements]
        if counts != found:
            place = next(at for at, count in enumerate(counts) if count != found[at])
            message = f"n_measurements is {counts[place]}, but there are {found[place]}"
            raise InputError(message, code="bad_record", where=where(place))
        return table, measurements


def _with_source(batch: pa.RecordBatch, src_addr: str) -> pa.RecordBatch:
    """Append the source address to each measurement, as a dictionary of one text."""
    # Indices of 32 bits, so that batches of any number of probes can be joined.
    rows = pa.array(np.zeros(batch.num_rows, np.int32))
    return batch.append_column("src_addr", pa.DictionaryArray.from_arrays(rows, pa.array([src_addr])))


_ITEM_COLUMNS = [
    "src_id",
    "src_addr",
    "n_measurements",
    "time_span_seconds",
    "first_timestamp",
    "last_timestamp",
]
