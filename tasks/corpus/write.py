"""Write sample shards: take the selected rows batch by batch and write row groups of about 16 MiB.

zstd-1, no dictionary and no statistics on text, pages of 256 KiB or 1,024 rows, whichever is more: on documents of
1.9 kB pages of fewer rows cost a tenth more time. The bytes depend only on the rows (see `row_groups`). A thread has
one row group in memory, however much is sampled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from schemas.corpus import OWN_COLUMNS, SampleCompression
from schemas.errors import InputError, IntegrityError
from schemas.run import FileRecord, Receipt, RowLedger
from tasks.corpus.cut import ShardCut, SourceRows
from tasks.corpus.reading import iter_columns
from tasks.corpus.row_groups import row_groups
from tasks.corpus.select import Eligibility, kept_rows
from tasks.corpus.selection.cutoff import Cutoff, IdRange
from tasks.inputs.columns import as_text
from tasks.run.contract import Job
from tasks.storage.atomic import AtomicFile
from tasks.storage.parquet import discard_parquet, parquet_writer

_PAGE_BYTES = 256 << 10
_COMPRESSED = ("zstd", "gzip")


@dataclass(frozen=True, kw_only=True)
class WriteJob(Job):
    """Write some shards of one bucket.

    Attributes:
        shards: the pieces of each shard.
        dataset: value of the column `source_dataset`; `bucket`: value of `source_bucket`.
        text: the source's text column; `keep_columns`: other columns to copy.
        id_column: name of the column for document ids, if there is one.
        batch_rows: most rows read at once.
    """

    task: ClassVar[str] = "write"
    shards: tuple[ShardCut, ...]
    seed: int
    bucket: str
    dataset: str
    text: str
    keep_columns: tuple[str, ...]
    id_column: str | None
    batch_rows: int
    cutoff: Cutoff
    compression: SampleCompression
    compression_level: int


def write_sample(job: WriteJob) -> Receipt:
    """Write the shards of a job into its stage folder.

    Raises:
        InputError: a source file is damaged; `invalid_utf8`: a column of type string holds what is not UTF-8.
        IntegrityError: a shard did not get the rows that were planned for it.
        StorageError: a shard cannot be written.
    """
    root = job.root
    records: list[FileRecord] = []
    rows: list[int] = []
    lengths: Counter[int] = Counter()
    text_bytes = 0
    for number, shard in enumerate(job.shards):
        path = job.folder / f"part-{number:06d}.parquet"
        with _SampleWriter(path, job) as writer:
            for table in row_groups(batch for piece in shard.pieces for batch in _selected(job, piece)):
                writer.add(table)
                # Otherwise it would stay in memory while the next one is gathered.
                del table
            writer.finish()
        if writer.rows != shard.rows:
            raise IntegrityError(
                f"{shard.rows} rows were planned but {writer.rows} were found; did a source file change?",
                code="totals",
                where=shard.pieces[0].name,
            )
        records.append(writer.record(root))
        rows.append(writer.rows)
        lengths.update(writer.lengths)
        text_bytes += writer.text_bytes
    return job.receipt(
        records,
        ledger=RowLedger(rows_in=sum(rows), rows_used=sum(rows)),
        statistics={
            "rows": rows,
            "text_bytes": text_bytes,
            "bytes_up_to_power_of_2": {str(k): n for k, n in sorted(lengths.items())},
        },
    )


def _selected(job: WriteJob, piece: SourceRows) -> Iterator[pa.RecordBatch]:
    """Yield the selected rows of a piece: the text, the document id if wanted, the columns to keep."""
    eligible = Eligibility({piece.file: piece.bitmap})
    ids = IdRange(piece.file, piece.start, piece.stop)
    kept = kept_rows(job.seed, job.bucket, piece.name, ids, job.cutoff, eligible)
    # Rows of the groups read that lie outside the piece belong to other shards.
    row = piece.first_row - piece.start
    columns = [job.text, *job.keep_columns]
    groups = range(piece.first_group, piece.end_group)
    for batch in iter_columns(piece.path, piece.name, groups, columns, job.batch_rows):
        low, high = max(row, 0), min(row + batch.num_rows, len(kept))
        if low < high:
            chosen = np.flatnonzero(kept[low:high])
            if len(chosen):
                taken = batch if len(chosen) == batch.num_rows else batch.take(pa.array(chosen + (low - row)))
                rows = piece.start + low + chosen
                taken = _plain_text(taken, job.text, piece.name, rows)
                if job.id_column is not None:
                    taken = taken.add_column(1, job.id_column, document_ids(job.bucket, piece.name, rows))
                yield taken
        row += batch.num_rows


def document_ids(bucket: str, name: str, rows: NDArray[np.int64]) -> pa.Array:
    """Return the ids that are hashed, as `string`.

    >>> document_ids("4.0", "a/b.parquet", np.array([0, 17])).to_pylist()
    ['4.0#a/b.parquet#0', '4.0#a/b.parquet#17']
    """
    return pc.binary_join_element_wise(f"{bucket}#{name}", pa.array(rows).cast(pa.string()), "#")


def _plain_text(batch: pa.RecordBatch, column: str, name: str, rows: NDArray[np.int64]) -> pa.RecordBatch:
    """Return the batch with its text as `string`; files of one bucket may store it in different types.

    Args:
        column, name, rows: the text column, the file and its rows in errors.
    """
    text, invalid = as_text(batch.column(0))
    if invalid.any():
        # Nothing is read before selection where the footer promises texts, so this shows only now.
        raise InputError(
            f"{column!r} is of type string, but this row is not valid UTF-8; rewrite the file, or set "
            "on_error: skip, which reads all texts first and rejects such rows",
            code="invalid_utf8",
            where=f"{name}:{rows[invalid][0]}",
        )
    # Under the name it gets, because a kept column or the ids may have its own.
    return batch.set_column(0, pa.field(OWN_COLUMNS[0], pa.string()), text)


class _SampleWriter:
    """Write one shard, a row group at a time; nothing is visible before `finish`."""

    def __init__(self, path: Path, job: WriteJob) -> None:
        self._job = job
        self._file = AtomicFile(path)
        self._writer: pq.ParquetWriter | None = None
        self.rows = 0
        self.text_bytes = 0
        self.lengths: Counter[int] = Counter()

    def add(self, source: pa.Table) -> None:
        """Write one row group: the text, then the kept columns."""
        self._count(pc.binary_length(source.column(0)).to_numpy())
        columns = [
            source.column(0),
            pa.repeat(pa.scalar(self._job.dataset), len(source)),
            pa.repeat(pa.scalar(self._job.bucket), len(source)),
            *source.columns[1:],
        ]
        table = pa.Table.from_arrays(columns, names=[*OWN_COLUMNS, *source.column_names[1:]])
        if self._writer is None:
            self._writer = self._open(table.schema)
        self._writer.write_table(table, row_group_size=len(table))

    def _count(self, lengths: NDArray[np.int32]) -> None:
        # Once for each row group: once for each batch of rows took as long as the checksum.
        classes = np.bincount(np.ceil(np.log2(np.maximum(lengths, 1))).astype(np.int64))
        self.lengths.update({power: int(count) for power, count in enumerate(classes) if count})
        self.rows += len(lengths)
        self.text_bytes += int(lengths.sum(dtype=np.int64))

    def finish(self) -> None:
        """Close the file and make it visible."""
        if self._writer is not None:
            self._writer.close()
        self._file.commit()

    def record(self, root: Path) -> FileRecord:
        """Return the record of the finished file, relative to `root`."""
        return self._file.record(root)

    def __enter__(self) -> _SampleWriter:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            discard_parquet(self._writer, self._file)

    def _open(self, schema: pa.Schema) -> pq.ParquetWriter:
        codec = self._job.compression.value
        return parquet_writer(
            self._file,
            schema,
            compression=codec,
            compression_level=self._job.compression_level if codec in _COMPRESSED else None,
            # The two source columns have one value for each bucket.
            use_dictionary=["source_dataset", "source_bucket"],
            write_statistics=["source_dataset", "source_bucket"],
            data_page_size=_PAGE_BYTES,
            store_schema=True,
        )
