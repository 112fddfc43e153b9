"""Base of the writers of all formats: bins come in order, singly or in blocks, and become visible all together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from schemas.errors import WorkError
from schemas.run import FileRecord
from schemas.sft import StorageFormat
from tasks.packing.arrays import lengths_to_offsets
from tasks.sft.shards.bins import Bins
from tasks.sft.shards.invariants import OURS_ONLY, RawBins, check_bins
from tasks.sft.shards.shard import ShardMetadata


class BinWriter(ABC):
    """Write one shard; nothing is visible before `finalize`, and an exception in the `with` block removes everything.

    Args:
        storage_format: the format.
        metadata: the shard's description of itself, whose limits `write_bin` checks.
        block_bins: bins that `write_bin` collects before a block of them is written.

    Attributes:
        bins_written: bins written so far, without those still waiting for their block.
    """

    def __init__(self, storage_format: StorageFormat, metadata: ShardMetadata, block_bins: int) -> None:
        self.bins_written = 0
        self._format = storage_format
        self._metadata = metadata
        self._block_bins = block_bins
        self._waiting: list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]] = []
        self._done = False

    def write_bin(
        self, bin_id: int, input_ids: ArrayLike, loss_mask: ArrayLike, seq_start_id: ArrayLike
    ) -> None:
        """Write one bin; bins come in order, `bin_id` counting from 0.

        Args:
            input_ids: ints[tokens], the bin's sequences one after another.
            loss_mask: ints[tokens], 0 or 1, shifted: entry j says whether token j + 1 of its sequence is trained.
            seq_start_id: ints[sequences], where each sequence starts; first 0, increasing, inside the bin.

        Raises:
            ValueError: `bin_id` is not the next one, or the bin breaks a rule that `validate` checks.
            OverflowError: an id, mask entry or start does not fit its type.
        """
        expected = self.bins_written + len(self._waiting)
        if bin_id != expected:
            raise ValueError(f"bins must be written in order: expected bin {expected}, got {bin_id}")
        columns = (_exact(input_ids, np.int32), _exact(loss_mask, np.uint8), _exact(seq_start_id, np.int32))
        self._refuse_broken(bin_id, *columns)
        self._waiting.append(columns)
        if len(self._waiting) == self._block_bins:
            self._flush()

    def write_block(self, bins: Bins) -> None:
        """Write many bins at once: the fast path."""
        self._flush()
        if bins.num_bins:
            self._write(bins)
            self.bins_written += bins.num_bins

    def finalize(self) -> dict[str, Any]:
        """Write the waiting bins and make the shard visible.

        Returns:
            `format`, `num_bins`, `bins_written`, and what else describes the storage: for Parquet `compression` and
            `row_group_size`, for memmap its manifest.
        """
        self._flush()
        said = self._commit()
        self._done = True
        counts = {"num_bins": self.bins_written, "bins_written": self.bins_written}
        return {**said, "format": self._format.value, **counts}

    def _refuse_broken(
        self, bin_id: int, ids: NDArray[Any], mask: NDArray[Any], starts: NDArray[Any]
    ) -> None:
        offsets = [np.array([0, len(column)]) for column in (ids, mask, starts)]
        bins = RawBins(ids, offsets[0], mask, offsets[1], starts, offsets[2])
        for rule, rows, detail in check_bins(bins, self._metadata.limits()):
            # As in `validate`: only a file with our format version must keep the rules that are ours alone.
            if len(rows) and (rule not in OURS_ONLY or self._metadata.version is not None):
                raise ValueError(f"bin {bin_id} is not valid: {detail} ({rule})")

    def _flush(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            ids, masks, starts = zip(*waiting, strict=True)
            self.write_block(
                Bins(
                    np.concatenate(ids),
                    np.concatenate(masks),
                    lengths_to_offsets([len(part) for part in ids]),
                    np.concatenate(starts),
                    lengths_to_offsets([len(part) for part in starts]),
                )
            )

    @abstractmethod
    def _write(self, bins: Bins) -> None: ...

    @abstractmethod
    def _commit(self) -> dict[str, Any]: ...

    @abstractmethod
    def _discard(self) -> None: ...

    @abstractmethod
    def records(self, root: Path) -> tuple[FileRecord, ...]:
        """Return the records of the written files, relative to `root`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._done:
            self._discard()


class CountedWriter(BinWriter):
    """Base of writers for formats that begin with the number of bins."""

    def __init__(
        self, storage_format: StorageFormat, metadata: ShardMetadata, num_bins: int, block_bins: int
    ) -> None:
        super().__init__(storage_format, metadata, block_bins)
        self.num_bins = num_bins

    def write_block(self, bins: Bins) -> None:
        """Write many bins at once.

        Raises:
            WorkError: there are more bins than announced.
        """
        super().write_block(bins)
        self._check_count(self.bins_written <= self.num_bins)

    def finalize(self) -> dict[str, Any]:
        """Complete the shard; see `BinWriter.finalize`.

        Raises:
            WorkError: there are fewer bins than announced.
        """
        self._flush()
        self._check_count(self.bins_written == self.num_bins)
        return super().finalize()

    def _check_count(self, right: bool) -> None:
        if not right:
            raise WorkError(f"{self.bins_written} bins were written, but {self.num_bins} were announced")


def _exact(values: ArrayLike, dtype: type[np.integer[Any]]) -> NDArray[Any]:
    """Convert `values` without overflow; numpy would wrap values of an array that do not fit."""
    array = np.asarray(values) if len(values) else np.empty(0, dtype)  # type: ignore[arg-type]
    if array.dtype == dtype:
        return array
    if array.dtype.kind not in "iub":
        raise OverflowError(f"values of a bin are {array.dtype}, not integers")
    limits = np.iinfo(dtype)
    if array.min(initial=0) < limits.min or array.max(initial=0) > limits.max:
        raise OverflowError(f"values of a bin do not fit into {limits.dtype}: {array.min()} to {array.max()}")
    return array.astype(dtype)
