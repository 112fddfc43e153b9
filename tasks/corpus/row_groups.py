"""Cut a stream of rows into row groups that depend on nothing but the rows.

Parquet pages, and so the bytes of a file, follow the chunks of the arrays that are written. So a row group's text is
one array here, in whatever batches it was read, and is gathered into one buffer as it arrives. Keeping the pieces and
joining them at the end needs twice the memory at that moment, and hundreds of pieces of all sizes leave gaps in
Arrow's allocator: 330 MB for two threads, against 275.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

GROUP_BYTES = 16 << 20
GROUP_ROWS = 128 << 10
# Room for the text that ends a group; a longer text costs a copy of the group.
_SLACK_BYTES = 1 << 20


def row_groups(
    batches: Iterable[pa.RecordBatch], group_bytes: int = GROUP_BYTES, group_rows: int = GROUP_ROWS
) -> Iterator[pa.Table]:
    """Cut `batches`, whose first column is a `string` without nulls, into tables of one row group each.

    Args:
        group_bytes: a group ends with the row that brings its text to this size,
        group_rows: or when it has this many rows.

    >>> batch = pa.record_batch({"text": ["a", "bcd", "", "ef", "g"]})
    >>> [table.column("text").to_pylist() for table in row_groups([batch], group_bytes=3)]
    [['a', 'bcd'], ['', 'ef', 'g']]
    """
    group: _Group | None = None
    for batch in batches:
        while batch.num_rows:
            group = group or _Group(batch.schema, group_bytes, group_rows)
            batch = batch.slice(group.take(batch))
            if group.full:
                table, group = group.table(), None
                yield table
                # Otherwise it would stay in memory while the next one is gathered.
                del table
    if group is not None:
        yield group.table()


class _Group:
    """Gather one row group."""

    def __init__(self, schema: pa.Schema, most_bytes: int, most_rows: int) -> None:
        self._schema = schema
        self._most_bytes = most_bytes
        self._text = np.empty(most_bytes + _SLACK_BYTES, np.uint8)
        self._offsets = np.zeros(most_rows + 1, np.int32)
        self._others: list[pa.RecordBatch] = []
        self._rows = 0

    @property
    def full(self) -> bool:
        return self._rows + 1 == len(self._offsets) or int(self._offsets[self._rows]) >= self._most_bytes

    def take(self, batch: pa.RecordBatch) -> int:
        """Add the first rows of `batch`, as many as fit and at least one; return how many."""
        source, text = _string_buffers(batch.column(0))
        start = int(self._offsets[self._rows])
        ends = source[1 : len(self._offsets) - self._rows] - (source[0] - start)
        count = min(int(np.searchsorted(ends, self._most_bytes)) + 1, len(ends))
        end = int(ends[count - 1])
        if end > len(self._text):
            self._text = np.concatenate([self._text[:start], np.empty(end - start, np.uint8)])
        self._text[start:end] = text[source[0] : source[count]]
        self._offsets[self._rows + 1 : self._rows + 1 + count] = ends[:count]
        self._others.append(batch.slice(0, count).select(self._schema.names[1:]))
        self._rows += count
        return count

    def table(self) -> pa.Table:
        """Return the group as a table."""
        buffers = [None, pa.py_buffer(self._offsets[: self._rows + 1]), pa.py_buffer(self._text)]
        columns = [pa.Array.from_buffers(pa.string(), self._rows, buffers)]
        for name in self._schema.names[1:]:
            columns.append(pa.concat_arrays([batch.column(name) for batch in self._others]))
        return pa.Table.from_arrays(columns, schema=self._schema)


def _string_buffers(array: pa.Array) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Return the offsets of the array's values, one more than there are values, and the bytes they point into."""
    _, offsets, text = array.buffers()
    own = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    # If all values are empty, there may be no buffer at all.
    return own, np.frombuffer(text if text is not None else b"", np.uint8)
