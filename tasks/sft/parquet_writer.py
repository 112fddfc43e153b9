"""Packed bins to Parquet: flat buffers straight into list columns.

Tokens are PLAIN with zstd-1 (a dictionary of token ids only costs time), the mask is dictionary-encoded.
Row groups of 64 bins instead of 1,000 cost 0.3% of size and make shuffled reading 12x faster.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from schemas.run import FileRecord
from schemas.sft import (
    FORMAT_VERSION,
    METADATA_COUNT,
    METADATA_PACK_SIZE,
    METADATA_TOKENIZER,
    METADATA_VERSION,
    METADATA_VOCABULARY,
    Compression,
    PackConfig,
    StorageConfig,
)
from tasks.sft.packed import Bins
from tasks.store.atomic import AtomicFile

PACKED_FIELDS = {
    "input_ids": pa.list_(pa.int32()),
    "loss_mask": pa.list_(pa.uint8()),
    "seq_start_id": pa.list_(pa.int32()),
}


def packed_schema(metadata: Mapping[bytes, bytes] | None = None) -> pa.Schema:
    """The Arrow schema of a packed shard, with key-value metadata."""
    return pa.schema(list(PACKED_FIELDS.items()), metadata=metadata)


def shard_metadata(pack: PackConfig, tokenizer_digest: str, vocabulary_size: int) -> dict[bytes, bytes]:
    """What a shard says about itself: format version, pack size, counting, tokenizer, vocabulary size."""
    return {
        METADATA_VERSION: str(FORMAT_VERSION).encode(),
        METADATA_PACK_SIZE: str(pack.size).encode(),
        METADATA_COUNT: pack.count.value.encode(),
        METADATA_TOKENIZER: tokenizer_digest.encode(),
        METADATA_VOCABULARY: str(vocabulary_size).encode(),
    }


class ParquetShardWriter:
    """Writes one shard, a row group at a time; nothing is visible before `finalize`.

    Args:
        path: the shard file.
        storage: row group size and codec.
        metadata: see `shard_metadata`.
    """

    def __init__(self, path: Path, storage: StorageConfig, metadata: Mapping[bytes, bytes]) -> None:
        self._schema = packed_schema(metadata)
        self._row_group_size = storage.row_group_size
        self._pending: list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]] = []
        self._bins = 0
        self._file = AtomicFile(path)
        has_level = storage.compression in (Compression.ZSTD, Compression.GZIP)
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._file, mode="w"),
            self._schema,
            compression=storage.compression.value,
            compression_level=storage.compression_level if has_level else None,
            use_dictionary=["loss_mask.list.element"],
            write_statistics=False,
            store_schema=True,
        )

    def write_block(self, bins: Bins) -> None:
        """Write a block of bins as row groups of at most `row_group_size` bins."""
        self._flush()
        columns = [
            _lists(bins.token_offsets, bins.input_ids),
            _lists(bins.token_offsets, bins.loss_mask),
            _lists(bins.seq_offsets, bins.seq_starts),
        ]
        table = pa.Table.from_arrays(columns, schema=self._schema)
        self._writer.write_table(table, row_group_size=self._row_group_size)
        self._bins += bins.num_bins

    def write_bin(
        self, bin_id: int, input_ids: NDArray[Any], loss_mask: NDArray[Any], seq_start_id: NDArray[Any]
    ) -> None:
        """Write one bin; bins come in order, `bin_id` counting from 0.

        Raises:
            ValueError: `bin_id` is not the next one.
        """
        expected = self._bins + len(self._pending)
        if bin_id != expected:
            raise ValueError(f"bins are written in order: expected bin {expected}, got {bin_id}")
        self._pending.append((input_ids, loss_mask, seq_start_id))
        if len(self._pending) == self._row_group_size:
            self._flush()

    def finalize(self) -> dict[str, int]:
        """Write what is pending, commit the file; returns `bins_written`."""
        self._flush()
        self._writer.close()
        self._file.commit()
        return {"bins_written": self._bins}

    def record(self, root: Path) -> FileRecord:
        return self._file.record(root)

    def __enter__(self) -> ParquetShardWriter:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            # Closed here, because its destructor would write to the removed file and complain.
            with contextlib.suppress(Exception):
                self._writer.close()
            self._file.__exit__(kind, error, trace)

    def _flush(self) -> None:
        if self._pending:
            pending, self._pending = self._pending, []
            ids, masks, starts = zip(*pending, strict=True)
            self.write_block(
                Bins(
                    np.concatenate(ids).astype(np.int32, copy=False),
                    np.concatenate(masks).astype(np.uint8, copy=False),
                    _offsets(ids),
                    np.concatenate(starts).astype(np.int32, copy=False),
                    _offsets(starts),
                )
            )


def _offsets(parts: tuple[NDArray[Any], ...]) -> NDArray[np.int64]:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum([len(part) for part in parts], dtype=np.int64)))


def _lists(offsets: NDArray[np.int64], values: NDArray[Any]) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values))
