"""Parquet whose few bytes decode to gigabytes: memory is bounded by single rows, and repetitive rows are read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.corpus.reading import iter_columns
from tasks.inputs.files import InputFile
from tasks.inputs.readers import BATCH_ROWS, RowFault, read_rows
from tasks.inputs.segments import segments_of
from tasks.storage.parquet import open_parquet
from tasks.storage.parquet_batches import BATCH_BYTES, FEW_ROWS, parquet_batches, parts, python_bytes
from tasks.tokenizer.rows import batches

_BIG = 1 << 20


def _repeated(text: str, rows: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), [text])


def _written(path: Path, table: pa.Table) -> Path:
    # Without Arrow's own schema, the texts are read as what they are in the file.
    pq.write_table(table, path, compression="zstd", store_schema=False)
    return path


@pytest.fixture
def bomb(tmp_path: Path) -> Path:
    """512 rows of 1 MiB in a few hundred bytes."""
    path = _written(tmp_path / "bomb.parquet", pa.table({"text": _repeated("y" * _BIG, 512)}))
    assert path.stat().st_size < 2000
    return path


def test_every_reader_holds_few_rows(bomb: Path) -> None:
    pool = pa.default_memory_pool()
    [segment] = segments_of(InputFile(bomb, bomb.name, bomb.stat().st_size), "parquet")
    readers = {
        "rows": lambda: ((len(batch), batch[0][1]["text"]) for batch in read_rows(segment)),
        "columns": lambda: (
            (len(batch), batch.column(0)[0].as_py())
            for batch in iter_columns(str(bomb), bomb.name, [0], ["text"], 4096)
        ),
        "sample": lambda: (
            (len(texts), texts[0].as_py()) for _, texts, _ in batches([(str(bomb), bomb.name)], 0, 0.0)
        ),
    }
    for name, read in readers.items():
        before, peak, rows = pool.bytes_allocated(), 0, 0
        for count, text in read():
            peak = max(peak, pool.bytes_allocated() - before)
            rows += count
            assert len(text) == _BIG
        assert rows == 512, name
        # A reader may hold a copy, and Arrow doubles what it grows.
        assert peak < 4 * FEW_ROWS * _BIG, name


def test_small_rows_are_joined(tmp_path: Path) -> None:
    table = pa.table({"n": range(1000), "text": [f"row {n}" for n in range(1000)]})
    pq.write_table(table, tmp_path / "f.parquet", row_group_size=300)
    with open_parquet(tmp_path / "f.parquet") as file:
        found = [*parquet_batches(file, range(4), None, BATCH_ROWS)]
        assert [one.num_rows for one in parquet_batches(file, [1], ["n"], 10)] == [10] * 30
    assert pa.Table.from_batches(found) == table
    assert max(one.num_rows for one in found) <= BATCH_ROWS and len(found) <= 5


def test_batches_end_where_rows_are_large(tmp_path: Path) -> None:
    sizes = [10] * 100 + [3 << 20] + [10] * 100 + [1 << 20] * 40
    pq.write_table(pa.table({"text": ["x" * size for size in sizes]}), tmp_path / "f.parquet")
    with open_parquet(tmp_path / "f.parquet") as file:
        found = [*parquet_batches(file, [0], None, BATCH_ROWS)]
    lengths = [[len(text.as_py()) for text in one.column(0)] for one in found]
    assert [length for one in lengths for length in one] == sizes
    assert all(len(one) <= FEW_ROWS or sum(one) <= BATCH_BYTES for one in lengths)
    cut = [part.num_rows for one in found for part, _ in parts(one)]
    assert sum(cut) == len(sizes) and max(cut) > 50 and cut[-1] <= 4


@pytest.mark.parametrize(
    "values",
    [
        pa.nulls(2_000_000),
        pa.nulls(2_000_000, pa.int8()),
        pa.array([{}] * 2_000_000, pa.struct([])),
        _repeated("x" * 40, 2_000_000),
    ],
    ids=["nulls", "null numbers", "empty objects", "repeated texts"],
)
def test_a_row_with_very_many_elements_is_too_large(values: pa.Array) -> None:
    lists = pa.ListArray.from_arrays(pa.array([0, 3, len(values)], pa.int32()), values)
    batch = pa.record_batch({"messages": lists})
    sizes = [size for _, size in parts(batch)]
    assert sizes[0] < 1000 and sizes[1] > 100 << 20
    assert python_bytes(batch.slice(0, 1)) == sizes[0]


def test_only_the_row_that_is_too_large_is_rejected(tmp_path: Path) -> None:
    values = pa.nulls(2_000_009, pa.int8())
    lists = pa.ListArray.from_arrays(pa.array([0, 3, 6, 2_000_006, 2_000_009], pa.int32()), values)
    path = _written(tmp_path / "f.parquet", pa.table({"n": range(4), "messages": lists}))
    [segment] = segments_of(InputFile(path, path.name, path.stat().st_size), "parquet")
    rows = [row for batch in read_rows(segment) for row in batch]
    assert [number for number, _ in rows] == [0, 1, 2, 3]
    faults = [value.reason for _, value in rows if isinstance(value, RowFault)]
    assert faults == ["row_too_large"] and isinstance(rows[2][1], RowFault)
    assert rows[3][1] == {"n": 3, "messages": [None] * 3}


def test_sizes_of_every_type_are_of_slices() -> None:
    columns = {
        "text": pa.array(["a", "bcd", None]),
        "view": pa.array(["a", "bcd", None]).cast(pa.string_view()),
        "map": pa.array([[("k", 1)], [], [("a", 2), ("b", None)]], pa.map_(pa.string(), pa.int64())),
        "fixed": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int32(), 2)),
        "deep": pa.array([[[{"a": "x"}]], [], None]),
        "codes": pa.array([1, 2, 1]).dictionary_encode(),
        "texts": pa.array(["a", None, "b"]).dictionary_encode(),
    }
    batch = pa.record_batch(columns)
    whole, pieces = python_bytes(batch), [python_bytes(batch.slice(row, 1)) for row in range(3)]
    assert all(0 < size < whole for size in pieces)
