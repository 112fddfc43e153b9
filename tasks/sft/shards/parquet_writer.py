"""Write packed bins to Parquet: flat buffers directly into list columns.

Tokens are PLAIN with zstd-1 (a dictionary of token ids only costs time); the mask is dictionary-encoded.
Row groups of 64 bins instead of 1,000 cost 0.3% of size and make shuffled reading 12x faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.run import FileRecord
from schemas.sft import Compression, StorageConfig, StorageFormat
from tasks.sft.shards.bin_writer import BinWriter
from tasks.sft.shards.bins import Bins
from tasks.sft.shards.shard import ShardMetadata
from tasks.storage.atomic import AtomicFile
from tasks.storage.parquet import discard_parquet, parquet_writer

PACKED_FIELDS = {
    "input_ids": pa.list_(pa.int32()),
    "loss_mask": pa.list_(pa.uint8()),
    "seq_start_id": pa.list_(pa.int32()),
}


def packed_schema(metadata: Mapping[bytes, bytes] | None = None) -> pa.Schema:
    """Return the Arrow schema of a packed shard, with key-value metadata."""
    return pa.schema(list(PACKED_FIELDS.items()), metadata=metadata)


class ParquetShardWriter(BinWriter):
    """Write one shard, a row group at a time; nothing is visible before `finalize`.

    Args:
        path: the shard file.
        storage: row group size and codec.
        metadata: the shard's description of itself.
    """

    def __init__(self, path: Path, storage: StorageConfig, metadata: ShardMetadata) -> None:
        super().__init__(StorageFormat.PARQUET, metadata, storage.row_group_size)
        self._schema = packed_schema({key.encode(): text.encode() for key, text in metadata.keys().items()})
        self._row_group_size = storage.row_group_size
        self._compression = storage.compression.value
        self._file = AtomicFile(path)
        has_level = storage.compression in (Compression.ZSTD, Compression.GZIP)
        self._writer = parquet_writer(
            self._file,
            self._schema,
            compression=self._compression,
            compression_level=storage.compression_level if has_level else None,
            use_dictionary=["loss_mask.list.element"],
            write_statistics=False,
            store_schema=True,
        )

    def _write(self, bins: Bins) -> None:
        """Write a block of bins as row groups of at most `row_group_size` bins."""
        columns = [
            _lists(bins.token_offsets, bins.input_ids),
            _lists(bins.token_offsets, bins.loss_mask),
            _lists(bins.seq_offsets, bins.seq_starts),
        ]
        table = pa.Table.from_arrays(columns, schema=self._schema)
        self._writer.write_table(table, row_group_size=self._row_group_size)

    def _commit(self) -> dict[str, Any]:
        self._writer.close()
        self._file.commit()
        return {"compression": self._compression, "row_group_size": self._row_group_size}

    def records(self, root: Path) -> tuple[FileRecord, ...]:
        """Return the record of the shard file, relative to `root`."""
        return (self._file.record(root),)

    def _discard(self) -> None:
        discard_parquet(self._writer, self._file)


def _lists(offsets: NDArray[np.int64], values: NDArray[Any]) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values))
