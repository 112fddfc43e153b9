"""Row groups depend on the rows and on nothing else."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tasks.corpus.row_groups import row_groups


def rows(count: int, seed: int = 0) -> pa.RecordBatch:
    rng = np.random.default_rng(seed)
    texts = ["é" * int(size) for size in rng.integers(0, 9, count)]
    ids = pa.array([None if i % 5 == 0 else i for i in range(count)])
    return pa.record_batch({"text": texts, "id": ids, "kind": pa.array(texts).dictionary_encode()})


def groups(batches: list[pa.RecordBatch], **limits: int) -> list[pa.Table]:
    return list(row_groups(iter(batches), **limits))


@pytest.mark.parametrize("batch_rows", [1, 3, 7, 100, 1000])
def test_groups_do_not_depend_on_the_batches(batch_rows: int) -> None:
    whole = rows(1000)
    batches = [whole.slice(start, batch_rows) for start in range(0, 1000, batch_rows)]
    found = groups(batches, group_bytes=100, group_rows=12)
    assert found == groups([whole], group_bytes=100, group_rows=12)
    assert pa.concat_tables(found).to_pylist() == whole.to_pylist()
    assert all(column.num_chunks == 1 for table in found for column in table.columns)


def test_a_group_ends_with_the_row_that_fills_it() -> None:
    sizes = [
        [int(n) for n in np.char.str_len(t["text"].to_pylist())] for t in groups([rows(500)], group_bytes=40)
    ]
    for lengths in sizes[:-1]:
        assert sum(lengths) * 2 >= 40 > sum(lengths[:-1]) * 2
    assert [len(table) for table in groups([rows(25)], group_rows=10)] == [10, 10, 5]


@pytest.mark.parametrize(
    "texts", [[""], ["", "", ""], ["x" * 5_000_000, "y"], ["y", "x" * 5_000_000, "", "z"]]
)
def test_empty_and_long_texts(texts: list[str]) -> None:
    batch = pa.record_batch({"text": texts})
    found = groups([batch.slice(0, 0), batch], group_bytes=1000)
    assert [text for table in found for text in table["text"].to_pylist()] == texts
    for table in found:
        table.validate(full=True)


def test_no_rows_give_no_groups() -> None:
    assert groups([]) == []
    assert groups([rows(0)]) == []
