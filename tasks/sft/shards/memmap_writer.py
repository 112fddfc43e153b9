"""Write packed bins to a memmap shard; layout in schemas/sft_memmap.py.

The rows are streamed rather than written through a mapping: a mapping costs a page fault for every 4 KB it touches,
and would have to be read again for its digest.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.errors import WorkError
from schemas.run import FileRecord
from schemas.sft import METADATA_SHA256, StorageFormat
from schemas.sft_memmap import MEMMAP_MANIFEST, MemmapManifest
from tasks.packing.arrays import lengths_to_offsets
from tasks.sft.shards.bin_writer import CountedWriter
from tasks.sft.shards.bins import Bins
from tasks.sft.shards.shard import ShardMetadata
from tasks.storage.atomic import AtomicFile, AtomicFolder

# Rows are padded in a buffer of about 1 MB of ids, which stays in cache until it is hashed and written.
_BUFFER_TOKENS = 1 << 18
_BLOCK_BINS = 64
_MAX_INDEX = 2**32


class MemmapShardWriter(CountedWriter):
    """See `BinWriter`.

    Args:
        path: the shard's folder.
        num_bins: bins that will be written.
        row_width: tokens for which a row has room.
        metadata: stored in the manifest; without a pack size, the row width is used.
    """

    def __init__(self, path: Path, num_bins: int, row_width: int, metadata: ShardMetadata) -> None:
        super().__init__(StorageFormat.MEMMAP, metadata, num_bins, _BLOCK_BINS)
        said = {key: text for key, text in metadata.keys().items() if not key.endswith(".pack_size")}
        self._manifest = MemmapManifest.model_validate(
            {
                "num_bins": num_bins,
                "pack_size": metadata.pack_size or max(row_width, 1),
                "row_width": row_width,
                "bins_written": num_bins,
                **said,
            }
        )
        self._lengths: list[NDArray[np.int64]] = []
        self._sequences: list[NDArray[np.int64]] = []
        self._starts: list[NDArray[np.uint32]] = []
        rows = max(1, _BUFFER_TOKENS // max(row_width, 1))
        self._buffers: dict[str, NDArray[Any]] = {
            "input_ids": np.zeros((rows, row_width), np.int32),
            "loss_mask": np.zeros((rows, row_width), np.uint8),
        }
        self._folder = AtomicFolder(path)
        self._files = {name: self._array(name, (num_bins, row_width)) for name in self._buffers}

    def _array(self, name: str, shape: tuple[int, ...]) -> AtomicFile:
        """Create an array file and write its header."""
        file = self._folder.new_file(f"{name}.npy")
        dtype = self._manifest.arrays()[name][0]
        header = {"descr": dtype, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        return file

    def _write(self, bins: Bins) -> None:
        lengths = np.diff(bins.token_offsets)
        too_long = np.flatnonzero(lengths > self._manifest.row_width)
        if len(too_long):
            row = int(too_long[0])
            raise WorkError(
                f"bin {self.bins_written + row} has {lengths[row]} tokens, but row_width is "
                f"{self._manifest.row_width}"
            )
        for name, values in (("input_ids", bins.input_ids), ("loss_mask", bins.loss_mask)):
            self._write_rows(self._files[name], self._buffers[name], values, bins.token_offsets)
        self._lengths.append(lengths)
        self._sequences.append(np.diff(bins.seq_offsets))
        self._starts.append(bins.seq_starts.astype(np.uint32))

    def _write_rows(
        self, file: AtomicFile, buffer: NDArray[Any], values: NDArray[Any], offsets: NDArray[np.int64]
    ) -> None:
        width = buffer.shape[1]
        if len(values) == width * (len(offsets) - 1):
            # Every row is full, so the values already have the layout of the file.
            file.write(np.ascontiguousarray(values))
            return
        bounds = list(itertools.pairwise(offsets.tolist()))
        for first in range(0, len(bounds), len(buffer)):
            some = bounds[first : first + len(buffer)]
            for row, (low, high) in enumerate(some):
                buffer[row, : high - low] = values[low:high]
                buffer[row, high - low :] = 0
            file.write(buffer[: len(some)])

    def _commit(self) -> dict[str, Any]:
        sequences = lengths_to_offsets(_joined(self._sequences))
        if sequences[-1] >= _MAX_INDEX:
            raise WorkError(
                f"{sequences[-1]:,} sequences are more than a memmap shard can index; reduce storage.shard_tokens"
            )
        index = {
            "packed_len": _joined(self._lengths).astype(np.uint32),
            "seq_offsets": sequences.astype(np.uint32),
            "seq_starts": _joined(self._starts).astype(np.uint32),
        }
        for name, values in index.items():
            self._files[name] = self._array(name, values.shape)
            self._files[name].write(values)
        for file in self._files.values():
            file.commit()
        digests = {f"{METADATA_SHA256}.{name}": file.sha256() for name, file in self._files.items()}
        self._manifest = self._manifest.model_copy(update=digests)
        with self._folder.new_file(MEMMAP_MANIFEST) as manifest:
            manifest.write(self._manifest.model_dump_json(indent=2).encode() + b"\n")
        self._folder.commit()
        return self._manifest.model_dump()

    def records(self, root: Path) -> tuple[FileRecord, ...]:
        """Return the records of the arrays and the manifest, relative to `root`."""
        return self._folder.records(root)

    def _discard(self) -> None:
        self._folder.discard()


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
