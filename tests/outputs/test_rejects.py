"""Inspection of reject files: rows by reason, the most frequent first, and some of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from loose_files import rejects

from schemas.errors import InputError
from tasks.outputs.found import Outputs
from tasks.outputs.rejects import inspect_rejects, query_rejects, rejects_tables


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, ...]:
    return (
        rejects(tmp_path / "1.parquet", ["empty", "bad", "bad"]),
        rejects(tmp_path / "2.parquet", ["bad"], detail=["x" * 2_000]),
    )


def test_rows_are_counted_by_reason_over_all_files(files: tuple[Path, ...]) -> None:
    [by_reason] = rejects_tables(files)
    assert by_reason.rows == (("bad", "3"), ("empty", "1"))


@pytest.mark.parametrize(
    ("rows", "first", "shown"),
    [
        (1, 0, [("empty", "0")]),
        (2, 2, [("bad", "2"), ("bad", "0")]),
        (9, 3, [("bad", "0")]),
        (9, 4, []),
    ],
)
def test_rejected_rows_are_shown_from_any_number_on(
    rows: int, first: int, shown: list[tuple[str, str]], files: tuple[Path, ...]
) -> None:
    _, *tables = inspect_rejects(Outputs("x", "rejected rows", files), rows, first).tables
    assert [(reason, row) for table in tables for reason, _, row, _ in table.rows] == shown
    assert all(len(detail) <= 1_201 for table in tables for *_, detail in table.rows)


def test_a_file_without_details_is_shown(tmp_path: Path) -> None:
    path = rejects(tmp_path / "r.parquet", ["bad"], detail=None)
    assert rejects_tables([path], 1)[1].rows == (("bad", "f.jsonl", "0", "None"),)


def test_a_damaged_file_is_named(files: tuple[Path, ...]) -> None:
    files[1].write_bytes(b"PAR1")
    with pytest.raises(InputError) as caught:
        rejects_tables(files)
    assert (caught.value.code, caught.value.where) == ("bad_parquet", str(files[1]))


def test_the_table_of_a_query(files: tuple[Path, ...]) -> None:
    assert query_rejects(Outputs("x", "rejected rows", files)).files == {"rejects": files}
