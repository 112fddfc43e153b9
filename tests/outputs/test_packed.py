"""Inspection of packed bins, on shards whose every number is known, in every format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sft.shard_files import Row, foreign_memmap, foreign_npy, foreign_parquet

from schemas.errors import ConfigError, InputError
from schemas.inspection import Inspection
from tasks.outputs.found import Outputs
from tasks.outputs.packed import inspect_packed, packed_batches, query_packed
from tasks.run.find import find

# 9 tokens in 4 sequences of 3, 2, 1 and 3 tokens; 3 entries of the masks are 1.
BINS: list[Row] = [([1, 2, 3, 4, 5], [1, 1, 0, 0, 0], [0, 3]), ([6], [0], [0]), ([7, 8, 9], [1, 0, 0], [0])]
WRITERS: dict[str, Callable[[Path, list[Row]], Path]] = {
    "parquet": lambda path, rows: foreign_parquet(path.with_suffix(".parquet"), rows),
    "npy": lambda path, rows: foreign_npy(path.with_suffix(".npy"), rows),
    "memmap": lambda path, rows: foreign_memmap(path, rows, 8),
}


def look(*files: Path, rows: int = 0, first: int = 0, tokenizer: Path | None = None) -> Inspection:
    return inspect_packed(Outputs(str(files[0].parent), "packed bins", files), rows, first, tokenizer)


def facts(found: Inspection) -> dict[str, tuple[str, str]]:
    return {fact.label: (fact.value, fact.hint) for fact in found.facts}


@pytest.mark.parametrize("name", WRITERS)
def test_totals_are_counted_alike_in_every_format(name: str, tmp_path: Path) -> None:
    files = [WRITERS[name](tmp_path / f"{n}", rows) for n, rows in enumerate((BINS[:2], BINS[2:]))]
    found = look(*files)
    counted = {
        "bins": ("3", ""), "sequences": ("4", ""), "tokens": ("9", ""), "trained": ("33.3%", "3"),
        "longest sequence": ("3", "tokens as stored"),
    }  # fmt: skip
    # A memmap says its pack size, and counts as a trainer does: 9 tokens less one a sequence, of 3 bins of 8.
    filled = {"filled": ("20.8%", "of 8 tokens")} if name == "memmap" else {}
    assert facts(found) == counted | filled
    about, shards = found.tables
    assert ("format", name) in about.rows and ("vocabulary", "not recorded") in about.rows
    assert [row[:5] for row in shards.rows] == [
        (files[0].name, "2", "3", "6", "2"),
        (files[1].name, "1", "1", "3", "1"),
    ]


def test_lengths_and_fill_are_charted(tmp_path: Path) -> None:
    lengths, fill = look(WRITERS["memmap"](tmp_path / "m", BINS)).charts
    assert sum(lengths.series[0].values) == 4 and sum(fill.series[0].values) == 3
    [only] = look(WRITERS["parquet"](tmp_path / "p", BINS)).charts
    assert only.title == lengths.title


def test_an_empty_shard_has_nothing_to_divide_by(tmp_path: Path) -> None:
    assert facts(look(foreign_parquet(tmp_path / "s.parquet", [])))["tokens"] == ("0", "")


@pytest.mark.parametrize(
    ("rows", "first", "titles"),
    [
        (1, 0, ["0, bin 0"]),
        (2, 1, ["0, bin 1", "1, bin 0"]),
        (9, 2, ["1, bin 0"]),
        (1, 3, []),
    ],
)
def test_bins_are_shown_from_any_number_on(rows: int, first: int, titles: list[str], tmp_path: Path) -> None:
    files = [foreign_memmap(tmp_path / f"{n}", rows) for n, rows in enumerate((BINS[:2], BINS[2:]))]
    assert [sample.title for sample in look(*files, rows=rows, first=first).samples] == titles


def test_a_bin_is_shown_by_sequences_with_the_trained_stretch_told_apart(tmp_path: Path) -> None:
    [sample] = look(foreign_parquet(tmp_path / "s.parquet", BINS), rows=1).samples
    shown = [[([*span.ids], span.trained) for span in sequence] for sequence in sample.sequences]
    assert shown == [[([1], False), ([2, 3], True)], [([4, 5], False)]]
    assert sample.note == "2 sequences, 5 tokens, 2 carry loss"


def test_a_long_bin_is_cut(tmp_path: Path) -> None:
    ids = list(range(3_000))
    path = foreign_parquet(tmp_path / "s.parquet", [(ids, [0] * 3_000, [0, 1_500, 2_500])])
    [sample] = look(path, rows=1).samples
    assert [sum(len(span.ids) for span in sequence) for sequence in sample.sequences] == [1_500, 500]
    assert sample.note.endswith("; the first 2,000 tokens are shown")


def test_many_shards_are_counted_and_not_all_listed(tmp_path: Path) -> None:
    files = [foreign_parquet(tmp_path / f"{n:02d}.parquet", BINS) for n in range(22)]
    shards = look(*files).tables[1]
    assert (len(shards.rows), shards.note) == (20, "and 2 more")


def test_shards_are_named_relative_to_what_was_named(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    path = foreign_parquet(tmp_path / "deep" / "s.parquet", BINS)
    for root, name in ((tmp_path, "deep/s.parquet"), (path, "s.parquet"), (tmp_path / "other", "s.parquet")):
        assert Outputs(str(root), "packed bins", (path,)).name(path) == name
    run = find(tmp_path / "deep")
    assert Outputs(str(tmp_path), "packed bins", (path,), run=run).name(path) == "s.parquet"


def test_damage_and_a_folder_that_is_no_tokenizer(tmp_path: Path) -> None:
    path = foreign_parquet(tmp_path / "s.parquet", BINS)
    with pytest.raises(ConfigError, match="cannot read a tokenizer from this folder") as caught:
        look(path, rows=1, tokenizer=tmp_path)
    assert (caught.value.code, caught.value.where) == ("bad_tokenizer", str(tmp_path))
    path.write_bytes(b"PAR1")
    with pytest.raises(InputError, match="not a readable Parquet file"):
        look(path)


@pytest.mark.parametrize("name", WRITERS)
def test_bins_as_batches_number_each_shard_from_0(name: str, tmp_path: Path) -> None:
    files = tuple(WRITERS[name](tmp_path / f"{n}", rows) for n, rows in enumerate((BINS[:2], BINS[2:])))
    outputs = Outputs(str(tmp_path), "packed bins", files)
    table: list[dict[str, Any]] = packed_batches(outputs).read_all().to_pylist()
    assert [(row["shard"], row["bin"]) for row in table] == [
        (files[0].name, 0), (files[0].name, 1), (files[1].name, 0),
    ]  # fmt: skip
    assert [(row["input_ids"], row["loss_mask"], row["seq_start_id"]) for row in table] == BINS
    assert list(table[0])[:5] == ["dataset", "split", "path", "shard", "bin"]
    tables = query_packed(outputs)
    assert (list(tables.files), list(tables.streams)) == (
        (["bins"], []) if name == "parquet" else ([], ["bins"])
    )
