"""Read Parquet in batches whose memory follows from what they hold, not from how many rows they have.

One text in a dictionary can stand for millions of rows: a file of 1 kB whose 256 rows are one text of 4 MB decodes to
1 GB at once. What a row takes is known only once it is decoded (a footer may lie, and Arrow gathers whole row
groups where it is asked for dictionaries), so few rows are decoded at once, and joined while they are small.
That costs 0.5 us a row, of documents of 1.9 kB a tenth of decoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

# So many rows are in memory whatever they take.
FEW_ROWS = 16
# A batch ends when its rows take so many bytes.
BATCH_BYTES = 4 << 20
# What an element of a list costs as a Python object.
_ELEMENT_BYTES = 64


def parquet_batches(
    file: pq.ParquetFile, groups: Iterable[int], columns: Sequence[str] | None, most_rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of row groups in order, in batches of about 4 MiB, or of the 16 rows decoded last.

    Args:
        columns: names of columns; `None` for all.
        most_rows: most rows of a batch.

    Raises:
        OSError, UnicodeDecodeError, pyarrow.ArrowException: `PARQUET_ERRORS`.
    """
    held: list[pa.RecordBatch] = []
    size = rows = 0
    few = min(FEW_ROWS, most_rows)
    for batch in file.iter_batches(few, row_groups=list(groups), columns=columns, use_threads=False):
        more = batch.nbytes
        if held and (rows + batch.num_rows > most_rows or size + more > BATCH_BYTES):
            yield _joined(held)
            held, size, rows = [], 0, 0
        held.append(batch)
        rows, size = rows + batch.num_rows, size + more
        # Not held by this name when the next one is decoded.
        del batch
        if size > BATCH_BYTES:
            yield held.pop()
            size = rows = 0
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def parts(batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield slices of a batch, each with its `python_bytes`: up to 4 MiB, or a single row."""
    size = python_bytes(batch)
    if size <= BATCH_BYTES or batch.num_rows <= 1:
        yield batch, size
        return
    half = batch.num_rows // 2
    for part in (batch.slice(0, half), batch.slice(half)):
        yield from parts(part)


def python_bytes(batch: pa.RecordBatch) -> int:
    """Return about how many bytes a batch takes as Python objects; a list of nulls takes none in Arrow."""
    return sum(_bytes(column) for column in batch.columns)


def _bytes(array: pa.Array) -> int:
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return _bytes(array.storage)
    if pa.types.is_dictionary(kind):
        return _dictionary_bytes(array)
    if pa.types.is_struct(kind):
        return sum(_bytes(array.field(place)) for place in range(kind.num_fields))
    if pa.types.is_fixed_size_list(kind):
        inside = array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size)
        return len(inside) * _ELEMENT_BYTES + _bytes(inside)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        first, end = array.offsets[0].as_py(), array.offsets[len(array)].as_py()
        columns = (array.keys, array.items) if pa.types.is_map(kind) else (array.values,)
        below = sum(_bytes(values.slice(first, end - first)) for values in columns)
        return int((end - first) * _ELEMENT_BYTES + below)
    return int(array.nbytes)


def _dictionary_bytes(array: pa.DictionaryArray) -> int:
    values = array.dictionary
    if not (pa.types.is_string(values.type) or pa.types.is_binary(values.type)):
        return int(array.nbytes)
    lengths = pc.binary_length(values).cast(pa.int64())
    return int(pc.sum(lengths.take(array.indices)).as_py() or 0)
