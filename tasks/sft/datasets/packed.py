"""Data sets of packed shards: one shard or many, of one format."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from schemas.errors import ConfigError
from schemas.sft import StorageFormat
from tasks.sft.datasets.access import Bin, BinAccess, ShardIndex
from tasks.sft.datasets.base import SftDataset, collate_of
from tasks.sft.datasets.locate import Location, locate
from tasks.sft.datasets.order import WINDOW
from tasks.sft.datasets.releases import Release
from tasks.sft.shards.find import shard_format
from tasks.sft.shards.shard import ShardMetadata


class MultiShardDataset(SftDataset):
    """The bins of several shards, one shard after another. See `SftDataset` for samples, numbers and mapping.

    Nothing is read before it is needed. First access reads the index of every shard (schema, metadata, row groups);
    after that, shards are opened when their bins are requested.

    Args:
        file_path: a shard, a folder or a glob of shards, or a list of those; URIs for Parquet.
        tokenizer: its `eos_id` or `eos_token_id` pads batches; without a tokenizer, 0 does.
        max_seq_length: longest row of a batch in runtime lengths; `None` for any.
        max_num_samples: number of samples; `None`: each bin once, in order.
        seed: seed of the mapping.
        return_cu_seqlen: whether batches have `cu_seqlens`.
        pad_cu_seqlens: pad them to one shape; needs the pack metadata, and pads rows to `max_seq_length`.
        pack_metadata_file_path: a run's `pack_metadata/{split}.json`.
        pad_to_max_length: pad rows to `max_seq_length`; `None`: only with `pad_cu_seqlens`.
        pad_seq_length_to_mult: otherwise pad rows to a multiple of this.
        pad_seq_to_mult: the multiple to which packing padded sequences, see `Collate`.
        release: the release of Megatron-Bridge whose batches to make, see `Collate`.
        window: see `SftDataset`.

    Raises:
        ConfigError: there are no such shards, or the arguments contradict each other. On first access: the shards
            have different pack sizes, or one larger than `max_seq_length`.
        BadShardError: on first access, a file is not a packed shard; later, a bin cannot be read.
    """

    format: ClassVar[StorageFormat | None] = None

    def __init__(
        self,
        file_path: Location | Sequence[Location],
        tokenizer: Any = None,
        max_seq_length: int | None = None,
        max_num_samples: int | None = None,
        seed: int = 1234,
        return_cu_seqlen: bool = True,
        pad_cu_seqlens: bool = False,
        pack_metadata_file_path: Location | None = None,
        *,
        pad_to_max_length: bool | None = None,
        pad_seq_length_to_mult: int = 16,
        pad_seq_to_mult: int = 1,
        release: str | Release = "any",
        window: int = WINDOW,
    ) -> None:
        super().__init__(max_num_samples, seed, window)
        self.collate_fn = collate_of(
            tokenizer,
            max_seq_length,
            return_cu_seqlen,
            pad_cu_seqlens,
            pack_metadata_file_path,
            pad_to_max_length,
            pad_seq_length_to_mult,
            pad_seq_to_mult,
            release,
        )
        locations = [file_path] if isinstance(file_path, str | os.PathLike) else list(file_path)
        if not locations:
            raise ConfigError(
                "the list of shards is empty; name at least one", code="missing_path", where="file_path"
            )
        self._access = BinAccess([path for location in locations for path in self._find(location)], window)
        self._checked = False

    def _find(self, location: Location) -> list[Path] | list[str]:
        paths = locate(location)
        for path in paths:
            found = StorageFormat.PARQUET if isinstance(path, str) else shard_format(path)
            if self.format is not None and found is not self.format:
                raise ConfigError(
                    f"this shard is {found}, but {type(self).__name__} reads {self.format}; use create_sft_dataset",
                    code="other_format",
                    where=str(path),
                )
        return paths

    @property
    def paths(self) -> tuple[Path | str, ...]:
        """The shards, in order; see `SftDataset.paths`."""
        return self._access.paths

    @property
    def metadata(self) -> ShardMetadata:
        """The metadata on which all shards agree."""
        return self._index.metadata

    @property
    def _index(self) -> ShardIndex:
        index = self._access.index
        if not self._checked:
            size, most = index.metadata.pack_size, self.collate_fn.max_seq_length
            if size is not None and most is not None and size > most:
                raise ConfigError(
                    f"max_seq_length {most} is less than the pack size {size}, so bins would not fit; "
                    "raise it, or pack to that size",
                    code="too_long",
                    where=str(self.paths[0]),
                )
            self._checked = True
        return index

    @property
    def num_bins(self) -> int:
        return self._index.bin_offsets[-1]

    @property
    def bin_groups(self) -> NDArray[np.int64]:
        return self._index.group_offsets

    def bin(self, number: int) -> Bin:
        """Return the bin `number`; see `SftDataset.bin`."""
        return self._access.bin(number)

    def close(self) -> None:
        """Close all shards; the next access opens them again."""
        self._access.close()


class PackedParquetDataset(MultiShardDataset):
    """Packed Parquet: a shard, or a folder or glob of them. Arguments as `MultiShardDataset`."""

    format = StorageFormat.PARQUET


class PackedMemmapDataset(MultiShardDataset):
    """Packed memmap: a shard's folder, or a folder or glob of those. Arguments as `MultiShardDataset`."""

    format = StorageFormat.MEMMAP


class PackedNpyDataset(MultiShardDataset):
    """Legacy `.npy`, read without unpickling. Arguments as `MultiShardDataset`."""

    format = StorageFormat.NPY
