"""Cutting a stream of rows into row groups that depend on nothing but the rows.

Parquet pages, and so the bytes of a file, follow the chunks of the arrays that are written. Here the chunks of the
text follow from the rows alone: 1,024 rows each, which is what the writer encodes at once, so the file is the one a
single array would give and no second copy of a whole row group is ever made (for two threads that was 70 MB of 330).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

GROUP_BYTES = 16 << 20
GROUP_ROWS = 128 << 10
# Parquet's own `write_batch_size`.
CHUNK_ROWS = 1024


def row_groups(
    batches: Iterable[pa.RecordBatch], group_bytes: int = GROUP_BYTES, group_rows: int = GROUP_ROWS
) -> Iterator[pa.Table]:
    """The rows of `batches`, whose first column is a `string`, as tables of one row group each.

    Args:
        group_bytes: a group ends with the row that brings its text to this size.
        group_rows: or with this many rows.

    >>> batch = pa.record_batch({"text": ["a", "bcd", "", "ef", "g"]})
    >>> [table.column("text").to_pylist() for table in row_groups([batch], group_bytes=3)]
    [['a', 'bcd'], ['', 'ef', 'g']]
    """
    pending: list[pa.RecordBatch] = []
    size = rows = 0
    for batch in batches:
        while batch.num_rows:
            ends = _text_ends(batch)[: group_rows - rows]
            fitting = min(int(np.searchsorted(ends, group_bytes - size)) + 1, len(ends))
            pending.append(batch.slice(0, fitting))
            batch = batch.slice(fitting)
            rows += fitting
            size += int(ends[fitting - 1])
            if size >= group_bytes or rows == group_rows:
                yield _table(pending)
                size = rows = 0
    if pending:
        yield _table(pending)


def _text_ends(batch: pa.RecordBatch) -> NDArray[np.int32]:
    """Where each text ends, in bytes from the start of the first."""
    text = batch.column(0)
    offsets = np.frombuffer(text.buffers()[1], np.int32)[text.offset : text.offset + len(text) + 1]
    return offsets[1:] - offsets[0]


def _table(pending: list[pa.RecordBatch]) -> pa.Table:
    """One table of all pending rows; empties the list."""
    schema = pending[0].schema
    columns = [[batch.column(i) for batch in pending] for i in range(len(schema))]
    pending.clear()
    # Other columns may be dictionaries, of which one array must have one: they are joined whole.
    arrays = [_in_chunks(columns[0]), *(pa.concat_arrays(column) for column in columns[1:])]
    return pa.Table.from_arrays(arrays, schema=schema)


def _in_chunks(arrays: list[pa.Array]) -> pa.ChunkedArray:
    """The same values in arrays of 1,024; each source is let go as soon as it is copied."""
    kind = arrays[0].type
    chunks: list[pa.Array] = []
    parts: list[pa.Array] = []
    room = CHUNK_ROWS
    arrays.reverse()
    while arrays:
        array = arrays.pop()
        while len(array):
            parts.append(array[:room])
            array = array[room:]
            room -= len(parts[-1])
            if not room:
                chunks.append(pa.concat_arrays(parts))
                parts.clear()
                room = CHUNK_ROWS
    if parts:
        chunks.append(pa.concat_arrays(parts))
    return pa.chunked_array(chunks, kind)
