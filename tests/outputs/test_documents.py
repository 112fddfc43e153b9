"""Inspection of sampled documents, on shards whose every number is known."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from loose_files import documents

from schemas.errors import InputError
from tasks.outputs.documents import cut, inspect_documents, query_documents
from tasks.outputs.found import Outputs


def outputs(*files: Path) -> Outputs:
    return Outputs(str(files[0].parent), "sampled documents", files)


@pytest.fixture
def shards(tmp_path: Path) -> Outputs:
    """Two shards: texts of 1, 2, 4, 5 and 0 bytes, and one of 1,300 characters."""
    first = documents(
        tmp_path / "1.parquet",
        ["a", "bb", "dddd"],
        source_dataset=["w", "w", "v"],
        source_bucket=["x", "y", "x"],
    )
    second = documents(tmp_path / "2.parquet", ["ééc", "", "é" * 1_300], source_dataset=["w"] * 3)
    return outputs(first, second)


def test_documents_are_counted_by_source_and_bucket_in_order_of_appearance(shards: Outputs) -> None:
    found = inspect_documents(shards, 0, 0)
    assert found.kind == "sampled documents" and found.samples == ()
    assert [(fact.label, fact.value) for fact in found.facts[:2]] == [("documents", "6"), ("text", "2.61 kB")]
    [table] = found.tables
    assert table.rows == (
        ("w", "x", "1", "1 B", "1"),
        ("w", "y", "1", "2 B", "2"),
        ("v", "x", "1", "4 B", "4"),
        ("w", "a", "3", "2.60 kB", "868"),
    )


def test_lengths_are_counted_up_to_powers_of_two(shards: Outputs) -> None:
    [chart] = inspect_documents(shards, 0, 0).charts
    counted = dict(zip(chart.labels, chart.series[0].values, strict=True))
    # 0 and 1 byte; 2; 4; 5; 2,600.
    assert {name: value for name, value in counted.items() if value} == {
        "1": 2.0, "2": 1.0, "4": 1.0, "8": 1.0, "4Ki": 1.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "first", "texts"),
    [
        (0, 0, []),
        (2, 0, ["a", "bb"]),
        (3, 1, ["bb", "dddd", "ééc"]),
        (2, 3, ["ééc", ""]),
        (9, 4, ["", "é" * 1_200 + "…"]),
        (9, 6, []),
    ],
)
def test_documents_are_shown_from_any_number_on(
    rows: int, first: int, texts: list[str], shards: Outputs
) -> None:
    samples = inspect_documents(shards, rows, first).samples
    assert [sample.sequences[0][0].text for sample in samples] == texts
    assert [sample.title.split(",")[0] for sample in samples] == [
        f"Document {first + n}" for n in range(len(texts))
    ]


def test_more_rows_than_a_batch(tmp_path: Path) -> None:
    found = outputs(documents(tmp_path / "d.parquet", [f"{n}" for n in range(2_500)]))
    assert inspect_documents(found, 0, 0).facts[0].value == "2,500"
    samples = inspect_documents(found, 2, 2_047).samples
    assert [sample.sequences[0][0].text for sample in samples] == ["2047", "2048"]


def test_text_of_other_tools(tmp_path: Path) -> None:
    path = documents(tmp_path / "d.parquet", pa.array(["a", None]).cast(pa.large_string()))
    found = inspect_documents(outputs(path), 2, 0)
    assert found.tables[0].rows == (("web", "a", "1", "1 B", "1"),)


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    path = documents(tmp_path / "d.parquet")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError) as caught:
        inspect_documents(outputs(path), 0, 0)
    assert (caught.value.code, caught.value.where) == ("bad_parquet", str(path))


def test_a_long_text_is_cut() -> None:
    assert cut("x" * 1_200) == "x" * 1_200
    assert cut("x" * 1_201) == "x" * 1_200 + "…"


def test_the_table_of_a_query(shards: Outputs) -> None:
    assert query_documents(shards).files == {"documents": shards.files}
