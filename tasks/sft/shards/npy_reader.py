"""Read a legacy `.npy` shard, an object array of dicts of Python lists, without unpickling.

Metadata follow the pickle, where `numpy.load` stops reading: a marker, then JSON.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.sft import METADATA_SHA256, StorageFormat
from tasks.packing.arrays import lengths_to_offsets
from tasks.sft.shards.invariants import RawBins
from tasks.sft.shards.npy_pickle import (
    DamagedPickleError,
    IntList,
    RefusedPickleError,
    decode_ints,
    index_pickle,
)
from tasks.sft.shards.shard import BLOCK_ROWS, BadShardError, Opened, ShardMetadata
from tasks.storage.npy_header import read_npy_header
from tasks.storage.reading import map_file, open_binary, parse_json

COLUMNS = ("input_ids", "loss_mask", "seq_start_id")
# Marks the metadata after the pickle, in files written by Gristmill.
TRAILER = b"\ngristmill metadata "
_MAX_TRAILER = 1 << 16
# Rows may share a list that the file has only once; sharing beyond this would turn a small file into a huge one.
_SHARED, _MAX_SHARING = 1 << 26, 16


class NpyShard(Opened):
    """See `Shard`. First access walks the file once; after that any block is found immediately."""

    format = StorageFormat.NPY

    @cached_property
    def _data(self) -> mmap.mmap:
        try:
            return map_file(self.path)
        except (OSError, ValueError) as error:
            raise self._unreadable(str(error)) from error

    @cached_property
    def _index(self) -> tuple[list[tuple[IntList, IntList, IntList]], int]:
        """The lists of each row, and the end of the pickle."""
        try:
            with open_binary(self.path) as file:
                header = read_npy_header(file)
            if header.descr not in ("|O", "O"):
                raise BadShardError.of(
                    self.path, ("schema", f"an array of {header.descr}, expected an object array of dicts")
                )
            rows, shape, end = index_pickle(self._data, header.offset)
        except RefusedPickleError as error:
            detail = f"refused: its pickle requests {error}; a packed shard needs only numpy arrays, dicts and lists"
            raise BadShardError.of(self.path, ("safe_pickle", detail), code="unsafe_pickle") from None
        except (DamagedPickleError, ValueError, OSError) as error:
            raise self._unreadable(str(error)) from None
        if header.shape != (len(rows),) or shape != header.shape:
            detail = f"the header says shape {header.shape}, but the array has {len(rows)} rows"
            raise BadShardError.of(self.path, ("schema", detail))
        index = [self._lists(row, number) for number, row in enumerate(rows)]
        expanded = sum(values.bytes() for lists in index for values in lists)
        if expanded > _SHARED + _MAX_SHARING * len(self._data):
            detail = (
                f"its rows share lists and would take {expanded:,} bytes; the file has {len(self._data):,}"
            )
            raise self._unreadable(detail)
        return index, end

    def _lists(self, row: Any, number: int) -> tuple[IntList, IntList, IntList]:
        found = []
        for name in COLUMNS:
            values = row.get(name) if isinstance(row, dict) else None
            values = getattr(values, "values", values) if not isinstance(values, dict) else None
            if not isinstance(values, IntList) or values.others:
                detail = (
                    f"{name!r} contains {type(values.others[0]).__name__}, expected whole numbers"
                    if isinstance(values, IntList)
                    else f"{name!r} is missing or not a list of whole numbers"
                )
                raise BadShardError.of(Path(f"{self.path}:{number}"), ("schema", detail))
            found.append(values)
        return found[0], found[1], found[2]

    @property
    def num_bins(self) -> int:
        return len(self._index[0])

    @cached_property
    def _keys(self) -> dict[str, str]:
        rest = self._data[self._index[1] : self._index[1] + _MAX_TRAILER]
        if not rest.startswith(TRAILER):
            return {}
        keys = parse_json(rest[len(TRAILER) :])
        return {str(key): str(value) for key, value in keys.items()}

    def digests(self) -> Iterator[tuple[Path, str, str]]:
        """See `Shard.digests`."""
        if METADATA_SHA256 in self._keys:
            with memoryview(self._data)[: self._index[1]] as content:
                found = hashlib.sha256(content).hexdigest()
            yield self.path, self._keys[METADATA_SHA256], found

    @cached_property
    def metadata(self) -> ShardMetadata:
        try:
            return ShardMetadata.parse(self._keys)
        except (ValueError, AttributeError) as error:
            detail = f"the file's metadata is not readable: {error}"
            raise BadShardError.of(self.path, ("metadata", detail)) from error

    def longest_bin(self) -> int:
        """See `Shard.longest_bin`."""
        # The masks are the cheapest to read: always two bytes per entry.
        masks = (mask for _, mask, _ in self._index[0])
        return max((len(decode_ints(self._data, mask)) for mask in masks), default=0)

    def blocks(self, first: int = 0, end: int | None = None, rows: int = BLOCK_ROWS) -> Iterator[RawBins]:
        """See `Shard.blocks`."""
        index = self._index[0][first:end]
        for start in range(0, len(index), rows):
            columns = zip(*index[start : start + rows], strict=True)
            parts: list[NDArray[Any]] = []
            for column in columns:
                lists = [decode_ints(self._data, values) for values in column]
                parts += [np.concatenate(lists), lengths_to_offsets([len(values) for values in lists])]
            yield RawBins(*parts)

    def _unreadable(self, detail: str) -> BadShardError:
        return BadShardError.of(self.path, ("readable", f"not a readable .npy shard: {detail}"))

    def close(self) -> None:
        """Close the mapped file; the next access opens it again."""
        if "_data" in vars(self):
            self._data.close()
        super().close()
