"""Choose the writer of each format, and the name of the shard."""

from __future__ import annotations

from pathlib import Path

from schemas.sft import StorageConfig, StorageFormat
from tasks.sft.shards.bin_writer import BinWriter
from tasks.sft.shards.memmap_writer import MemmapShardWriter
from tasks.sft.shards.npy_writer import NpyShardWriter
from tasks.sft.shards.parquet_writer import ParquetShardWriter
from tasks.sft.shards.shard import ShardMetadata

SUFFIXES = {StorageFormat.PARQUET: ".parquet", StorageFormat.MEMMAP: "", StorageFormat.NPY: ".npy"}


def shard_name(shard: int, storage_format: StorageFormat) -> str:
    """Return the file or folder name of a shard.

    >>> shard_name(3, StorageFormat.NPY), shard_name(3, StorageFormat.MEMMAP)
    ('shard_000003.npy', 'shard_000003')
    """
    return f"shard_{shard:06d}{SUFFIXES[storage_format]}"


def open_writer(
    path: Path, storage: StorageConfig, metadata: ShardMetadata, num_bins: int, row_width: int
) -> BinWriter:
    """Open a writer of one shard in the format of `storage`.

    Args:
        num_bins: bins that will be written.
        row_width: stored tokens of the longest of them, or more; only memmap uses it.
    """
    if storage.format is StorageFormat.MEMMAP:
        return MemmapShardWriter(path, num_bins, row_width, metadata)
    if storage.format is StorageFormat.NPY:
        return NpyShardWriter(path, num_bins, metadata)
    return ParquetShardWriter(path, storage, metadata)
