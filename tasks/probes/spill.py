"""Write and read sorted runs, one file each, between the two passes; the second pass reads only the slices it needs.

`run-000000.spill`, little-endian, every column padded to 8 bytes:

- header: int64[6]: `_MAGIC`, rows n, probes p, targets t, bytes of the probes' addresses, bytes of the targets';
- probes, sorted by hash: `hash uint64[p], rows int64[p]` (in this run), `dst_bytes int64[p]` (of their destination
  addresses), `src_addr`: ends int32[p + 1] and UTF-8;
- targets, the distinct destination addresses: ends int32[t + 1] and UTF-8;
- rows, sorted by the hash of their probe, then in input order: `event_time int64[n]` (microseconds), `dst int32[n]`
  (a target), `rtt float32[n]`. The version is that of the addresses.

So any range of hashes is one slice of each column. Slices are read, not mapped: opening a mapped Arrow file took 0.3
ms, and mapped pages count as resident memory, at least 64 KiB for each column of each run.

With a spill folder the files are there, and the stage folder has a record of each, see `tasks.run.elsewhere`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.errors import IntegrityError
from schemas.run import FileRecord
from tasks.probes.records.frames import padded
from tasks.run.elsewhere import read_elsewhere, record_path_of, write_elsewhere
from tasks.run.layout import stage_folder
from tasks.storage.atomic import AtomicFile, storage_errors
from tasks.storage.links import refuse_link
from tasks.storage.names import remove_path
from tasks.storage.reading import Ranges, open_ranges

# Part of the key of the first pass.
SPILL_FORMAT = 3
_MAGIC = int.from_bytes(b"GMspill3", "little")
_HEADER = 6
PROBES_SCHEMA = pa.schema(
    [("hash", pa.uint64()), ("src_addr", pa.string()), ("rows", pa.int64()), ("dst_bytes", pa.int64())]
)

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class SpillRef:
    """Locate a run by its stage and its number in the stage."""

    stage: str
    number: int

    def path(self, root: Path) -> Path:
        """Return the run's place below an output directory; with a spill folder a record of the file is there."""
        return stage_folder(root, self.stage) / f"run-{self.number:06d}.spill"

    def found(self, root: Path) -> Path:
        """Return where the run's file is.

        Raises:
            IntegrityError: its record is damaged.
        """
        path = self.path(root)
        try:
            return Path(read_elsewhere(record_path_of(path)).path)
        except FileNotFoundError:
            return path
        except OSError as error:
            raise _damaged(path, str(error.strerror)) from error


@dataclass(frozen=True)
class Spill:
    """Hold a sorted run in memory.

    Attributes:
        probes: batch of `PROBES_SCHEMA`, sorted by hash.
        targets: string[t].
        times: int64[n]; `dst_codes`: int32[n], indices into `targets`; `rtts`: float32[n].
    """

    probes: pa.RecordBatch
    targets: pa.StringArray
    times: Ints
    dst_codes: NDArray[np.int32]
    rtts: NDArray[np.float32]


def write_spill(root: Path, spill: Path | None, ref: SpillRef, run: Spill) -> FileRecord:
    """Write a run.

    Args:
        root: the output directory.
        spill: the spill folder, if the file belongs there.

    Returns:
        The record of its file, or of the file that says where it is, relative to `root`.

    Raises:
        StorageError: the file cannot be written.
        ConfigError: `foreign_output`: a folder of ours in the spill folder is a link.
    """
    path = ref.path(root)
    target = path if spill is None else spill / path.relative_to(root)
    for folder in (target.parent.parent, target.parent):
        refuse_link(folder)
    with storage_errors(path, "remove"):
        remove_path(record_path_of(path))
    hashes, addresses, rows, dst_bytes = run.probes.columns
    (src_ends, src_data), (dst_ends, dst_data) = _text_buffers(addresses), _text_buffers(run.targets)
    sizes = [len(run.times), len(hashes), len(run.targets), len(src_data), len(dst_data)]
    columns = [
        np.array([_MAGIC, *sizes]), hashes.to_numpy(), rows.to_numpy(), dst_bytes.to_numpy(), src_ends, src_data,
        dst_ends, dst_data, run.times, run.dst_codes, run.rtts,
    ]  # fmt: skip
    with AtomicFile(target) as file:
        for column in columns:
            file.write(np.ascontiguousarray(column))
            file.write(bytes(-column.nbytes % 8))
    record = file.record(target.parent)
    # The spill folder may be the output folder.
    if path.exists() and path.samefile(target):
        return record.model_copy(update={"path": path.relative_to(root).as_posix()})
    return write_elsewhere(path, record.model_copy(update={"path": str(target)})).record(root)


def _text_buffers(texts: pa.StringArray) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Return the ends of the texts, from 0, and their bytes."""
    _, offsets, data = texts.buffers()
    if not len(texts):
        return np.zeros(1, np.int32), np.zeros(0, np.uint8)
    ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    everything = np.frombuffer(data or b"", np.uint8)
    return ends - ends[0], everything[ends[0] : ends[-1]]


@dataclass(frozen=True)
class _Places:
    """Compute where the columns of a run's file start."""

    rows: int
    probes: int
    targets: int
    src_bytes: int
    dst_bytes: int

    @cached_property
    def begins(self) -> dict[str, int]:
        sizes = {
            "header": 8 * _HEADER, "hash": 8 * self.probes, "probe_rows": 8 * self.probes,
            "probe_dst_bytes": 8 * self.probes, "src_ends": 4 * (self.probes + 1), "src": self.src_bytes,
            "dst_ends": 4 * (self.targets + 1), "dst": self.dst_bytes,
            "times": 8 * self.rows, "codes": 4 * self.rows, "rtts": 4 * self.rows,
        }  # fmt: skip
        found, at = {}, 0
        for name, size in sizes.items():
            found[name] = at
            at += padded(size)
        return {**found, "end": at}


class _File:
    """Read columns of an open run."""

    def __init__(self, path: Path, file: Ranges) -> None:
        self._path, self._file = path, file
        header = np.frombuffer(file.read(0, 8 * _HEADER), "<i8")
        if len(header) != _HEADER or header[0] != _MAGIC:
            raise _damaged(path, "its header is wrong")
        self.places = _Places(*header[1:].tolist())
        if file.bytes != self.places.begins["end"]:
            raise _damaged(path, f"it has {file.bytes} bytes, not {self.places.begins['end']}")

    def column(self, name: str, kind: Any, low: int, high: int) -> NDArray[Any]:
        """Read items `low` to `high` of a column."""
        width = np.dtype(kind).itemsize
        size = (high - low) * width
        data = self._file.read(self.places.begins[name] + low * width, size)
        if len(data) != size:
            raise _damaged(self._path, "it ends too early")
        return np.frombuffer(data, kind)

    def texts(self, name: str, low: int, high: int) -> pa.StringArray:
        """Read texts `low` to `high`."""
        ends = self.column(f"{name}_ends", "<i4", low, high + 1)
        data = self.column(name, np.uint8, int(ends[0]), int(ends[-1]))
        return pa.StringArray.from_buffers(high - low, pa.py_buffer(ends - ends[0]), pa.py_buffer(data))

    def probes(self, low: int, high: int) -> pa.RecordBatch:
        """Read probes `low` to `high` as a batch of `PROBES_SCHEMA`."""
        columns = [
            pa.array(self.column("hash", "<u8", low, high)),
            self.texts("src", low, high),
            pa.array(self.column("probe_rows", "<i8", low, high)),
            pa.array(self.column("probe_dst_bytes", "<i8", low, high)),
        ]
        return pa.record_batch(columns, schema=PROBES_SCHEMA)


@contextmanager
def _opened(path: Path) -> Iterator[_File]:
    try:
        with open_ranges(path) as file:
            yield _File(path, file)
    except OSError as error:
        raise _damaged(path, str(error.strerror)) from error


def _damaged(path: Path, what: str) -> IntegrityError:
    return IntegrityError(
        f"a sorted run cannot be read: {what}; remove its stage and run again",
        code="bad_spill",
        where=str(path),
    )


@dataclass(frozen=True)
class OpenSpill:
    """Hold a range of the probes of a run, whose rows are read on demand.

    Attributes:
        probes: batch of `PROBES_SCHEMA`; `hashes`: uint64[p], theirs.
        starts: int64[p + 1], where the rows of each probe start in the run.
        num_targets: distinct destination addresses of the whole run.
    """

    path: Path
    probes: pa.RecordBatch
    hashes: NDArray[np.uint64]
    starts: Ints
    num_targets: int

    def read_rows(self, low: int, high: int) -> tuple[Ints, NDArray[np.int32], NDArray[np.float32]]:
        """Read the times, target numbers and round trip times of the rows of probes `low` to `high`.

        Raises:
            IntegrityError: `bad_spill`: the file is damaged.
        """
        first, last = int(self.starts[low]), int(self.starts[high])
        with _opened(self.path) as file:
            return (
                file.column("times", "<i8", first, last),
                file.column("codes", "<i4", first, last),
                file.column("rtts", "<f4", first, last),
            )

    def read_targets(self) -> pa.StringArray:
        """Read the destination addresses.

        Raises:
            IntegrityError: `bad_spill`: the file is damaged.
        """
        with _opened(self.path) as file:
            return file.texts("dst", 0, file.places.targets)


def read_probes(root: Path, ref: SpillRef) -> pa.RecordBatch:
    """Read all probes of a run.

    Raises:
        IntegrityError: `bad_spill`: the file is damaged.
    """
    with _opened(ref.found(root)) as file:
        return file.probes(0, file.places.probes)


def open_spill(root: Path, ref: SpillRef, first_hash: int, last_hash: int) -> OpenSpill:
    """Read the probes of a run whose hashes lie in a range, both ends included.

    Raises:
        IntegrityError: `bad_spill`: the file is damaged.
    """
    path = ref.found(root)
    with _opened(path) as file:
        hashes = file.column("hash", "<u8", 0, file.places.probes)
        low = int(np.searchsorted(hashes, np.uint64(first_hash), side="left"))
        high = int(np.searchsorted(hashes, np.uint64(last_hash), side="right"))
        before = int(file.column("probe_rows", "<i8", 0, low).sum())
        probes, num_targets = file.probes(low, high), file.places.targets
    starts = np.concatenate([[before], before + np.cumsum(probes.column(2).to_numpy())])
    return OpenSpill(path, probes, probes.column(0).to_numpy(), starts, num_targets)
