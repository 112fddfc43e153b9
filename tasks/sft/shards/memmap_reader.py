"""Read a packed memmap shard: a folder of arrays that are mapped, never loaded; layout in schemas/sft_memmap.py."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from schemas.sft import METADATA_SHA256, StorageFormat
from schemas.sft_memmap import MEMMAP_MANIFEST, MemmapManifest
from tasks.packing.arrays import lengths_to_offsets
from tasks.sft.shards.invariants import RawBins
from tasks.sft.shards.shard import BLOCK_ROWS, BadShardError, Opened, ShardMetadata
from tasks.storage.arrays import map_array
from tasks.storage.npy_header import read_npy_header
from tasks.storage.reading import open_binary, read_bytes, sha256_of_file

_MAX_MANIFEST = 1 << 20


class MemmapShard(Opened):
    """See `tasks.sft.shards.shard.Shard`. Its arrays are public for readers of single rows.

    Raises:
        BadShardError: on first access, manifest, headers and sizes do not agree; on the first block, the index
            arrays do not agree.
    """

    format = StorageFormat.MEMMAP

    @cached_property
    def manifest(self) -> MemmapManifest:
        path = self.path / MEMMAP_MANIFEST
        try:
            return MemmapManifest.model_validate_json(read_bytes(path, _MAX_MANIFEST))
        except OSError as error:
            detail = f"the folder's {MEMMAP_MANIFEST} cannot be read: {error.strerror}"
            raise BadShardError.of(self.path, ("readable", detail)) from error
        except ValidationError as error:
            raise BadShardError.of(path, *_manifest_findings(error)) from None

    @cached_property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Every array, mapped read-only, by name."""
        found: list[tuple[str, str]] = []
        arrays: dict[str, NDArray[Any]] = {}
        manifest = self.manifest
        if manifest.bins_written != manifest.num_bins:
            detail = f"bins_written is {manifest.bins_written}, but num_bins is {manifest.num_bins}"
            found.append(("manifest", f"{MEMMAP_MANIFEST}: {detail}"))
        for name, (dtype, shape) in manifest.arrays().items():
            try:
                arrays[name] = _map(self.path / f"{name}.npy", dtype, shape)
            except _MismatchError as error:
                found.append(("manifest", f"{name}.npy {error}"))
            except (OSError, ValueError) as error:
                found.append(("readable", f"{name}.npy cannot be read: {error}"))
        if found:
            raise BadShardError.of(self.path, *found)
        return arrays

    @cached_property
    def index(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """`packed_len` and `seq_offsets` as int64, checked against the arrays they point into."""
        lengths = self.arrays["packed_len"].astype(np.int64)
        offsets = self.arrays["seq_offsets"].astype(np.int64)
        width, sequences = self.manifest.row_width, len(self.arrays["seq_starts"])
        found = []
        for row in np.flatnonzero(lengths > width)[:1]:
            found.append(f"packed_len[{row}] is {lengths[row]}, but row_width is {width}")
        if offsets[0] != 0 or offsets[-1] != sequences:
            ends = f"{offsets[0]} to {offsets[-1]}"
            found.append(f"seq_offsets range from {ends}, but seq_starts has {sequences} entries")
        for row in np.flatnonzero(np.diff(offsets) < 0)[:1]:
            found.append(f"seq_offsets decrease after entry {row}")
        if found:
            raise BadShardError.of(self.path, *(("index", detail) for detail in found))
        return lengths, offsets

    @property
    def num_bins(self) -> int:
        # Count the arrays, not the manifest: a number that the files contradict is useless.
        return len(self.arrays["packed_len"])

    @cached_property
    def metadata(self) -> ShardMetadata:
        keys = {"gristmill.pack_size": self.manifest.pack_size, **self.manifest.other_keys()}
        try:
            return ShardMetadata.parse({key: str(value) for key, value in keys.items()})
        except ValueError as error:
            detail = f"{MEMMAP_MANIFEST} is not readable: {error}"
            raise BadShardError.of(self.path, ("metadata", detail)) from error

    def unclean_rows(self) -> NDArray[np.int64]:
        """Find rows whose padding is not all zeros."""
        lengths, width = self.index[0], self.manifest.row_width
        arrays = [self.arrays[name].view(np.ndarray) for name in ("input_ids", "loss_mask")]
        padded = np.flatnonzero(lengths < width)
        unclean = [
            row
            for row, length in zip(padded.tolist(), lengths[padded].tolist(), strict=True)
            if any(array[row, length:].any() for array in arrays)
        ]
        return np.array(unclean, np.int64)

    def digests(self) -> Iterator[tuple[Path, str, str]]:
        """See `Shard.digests`."""
        stated = self.manifest.other_keys()
        for name in self.manifest.arrays():
            if f"{METADATA_SHA256}.{name}" in stated:
                path = self.path / f"{name}.npy"
                yield path, str(stated[f"{METADATA_SHA256}.{name}"]), sha256_of_file(path)

    def longest_bin(self) -> int:
        """See `Shard.longest_bin`."""
        return int(self.index[0].max(initial=0))

    def blocks(self, first: int = 0, end: int | None = None, rows: int = BLOCK_ROWS) -> Iterator[RawBins]:
        """See `Shard.blocks`."""
        lengths, offsets = self.index
        end = len(lengths) if end is None else min(end, len(lengths))
        for low in range(first, end, rows):
            high = min(low + rows, end)
            used = lengths[low:high]
            token_offsets = lengths_to_offsets(used)
            yield RawBins(
                ids=_without_padding(self.arrays["input_ids"][low:high], used),
                ids_offsets=token_offsets,
                mask=_without_padding(self.arrays["loss_mask"][low:high], used),
                mask_offsets=token_offsets,
                starts=self.arrays["seq_starts"][offsets[low] : offsets[high]].astype(np.int64),
                starts_offsets=offsets[low : high + 1] - offsets[low],
            )


class _MismatchError(ValueError):
    """A header contradicts the manifest."""


def _map(path: Path, dtype: str, shape: tuple[int | None, ...]) -> NDArray[Any]:
    with open_binary(path) as file:
        header = read_npy_header(file)
        size = file.seek(0, 2)
        wanted = tuple(
            found if length is None else length for length, found in zip(shape, header.shape, strict=False)
        )
        if header.descr not in (dtype, dtype.replace("|", "<")):
            raise _MismatchError(f"has the type {header.descr}, expected {dtype}")
        if header.shape != wanted or len(header.shape) != len(shape):
            raise _MismatchError(f"has the shape {header.shape}, but the manifest says {wanted}")
        items = int(np.prod(wanted, dtype=object))
        expected = header.offset + items * np.dtype(dtype).itemsize
        if size != expected:
            raise ValueError(f"it has {size:,} bytes, but its header requires {expected:,}")
        if not items:
            return np.empty(header.shape, dtype)
        return map_array(file, dtype, header.offset, header.shape)


def _without_padding(rows: NDArray[Any], lengths: NDArray[np.int64]) -> NDArray[Any]:
    """Concatenate the first `lengths[i]` entries of each row."""
    if not len(rows):
        return np.empty(0, rows.dtype)
    # Row by row: a mask over all entries would touch the padding and move a byte per entry.
    plain = rows.view(np.ndarray)
    return np.concatenate([row[:length] for row, length in zip(plain, lengths.tolist(), strict=True)])


def _manifest_findings(error: ValidationError) -> Iterator[tuple[str, str]]:
    for fault in error.errors(include_url=False, include_context=False):
        name = ".".join(str(part) for part in fault["loc"])
        value = "" if fault["type"] == "missing" else f", not {str(fault['input'])[:80]!r}"
        yield "manifest", f"{MEMMAP_MANIFEST}: {name}: {fault['msg']}{value}".replace(": : ", ": ")
