"""Shards of a bucket, case by case: where one ends, and which rows each reads."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tasks.corpus.cut import ShardCut, SourceRows, cut_shards, shard_bytes_for
from tasks.corpus.inventory import RowGroup, SourceFile

MIB = 1 << 20


def source(number: int, *groups: tuple[int, int]) -> SourceFile:
    """A file of row groups, each (rows, bytes)."""
    found = tuple(RowGroup(rows, size) for rows, size in groups)
    return SourceFile(
        f"/in/{number}", f"{number}.parquet", f"digest {number}", 1, found, False, (), (number, 7)
    )


def asks_nothing(file: int, start: int, stop: int) -> NDArray[np.bool_]:
    raise AssertionError("only a row group that is cut inside needs its rows looked at")


def cut(
    files: list[SourceFile],
    selected: list[int],
    max_rows: int,
    shard_bytes: int = 1 << 40,
    kept: Any = asks_nothing,
) -> list[ShardCut]:
    bitmaps = [f"bitmap {number}" for number in range(len(files))]
    return cut_shards(files, bitmaps, np.array(selected, np.int64), max_rows, shard_bytes, kept)


def told(shards: list[ShardCut]) -> list[tuple[int, list[tuple[int, ...]]]]:
    """Of each shard its rows, and of its pieces: file, row groups, first row, rows."""
    return [
        (
            shard.rows,
            [(p.file, p.first_group, p.end_group, p.first_row, p.start, p.stop) for p in shard.pieces],
        )
        for shard in shards
    ]  # fmt: skip


THREE = [source(0, (10, 100), (10, 100), (10, 100))]
EACH_ALONE = [(5, [(0, 0, 1, 0, 0, 10)]), (5, [(0, 1, 2, 10, 10, 20)]), (5, [(0, 2, 3, 20, 20, 30)])]


@pytest.mark.parametrize(
    ("selected", "max_rows", "shard_bytes", "expected"),
    [
        # Row groups that follow each other are read as one piece.
        ([5, 5, 5], 15, 300, [(15, [(0, 0, 3, 0, 0, 30)])]),
        ([5, 5, 5], 99, 999, [(15, [(0, 0, 3, 0, 0, 30)])]),
        # A shard may hold exactly `max_rows`, and not one more.
        ([5, 5, 5], 14, 300, [(10, [(0, 0, 2, 0, 0, 20)]), (5, [(0, 2, 3, 20, 20, 30)])]),
        ([5, 5, 5], 10, 300, [(10, [(0, 0, 2, 0, 0, 20)]), (5, [(0, 2, 3, 20, 20, 30)])]),
        ([5, 5, 5], 9, 300, EACH_ALONE),
        # Likewise exactly `shard_bytes`; a row group above it is a shard of its own.
        ([5, 5, 5], 99, 299, [(10, [(0, 0, 2, 0, 0, 20)]), (5, [(0, 2, 3, 20, 20, 30)])]),
        ([5, 5, 5], 99, 200, [(10, [(0, 0, 2, 0, 0, 20)]), (5, [(0, 2, 3, 20, 20, 30)])]),
        ([5, 5, 5], 99, 199, EACH_ALONE),
        ([5, 5, 5], 99, 1, EACH_ALONE),
        # Row groups that give nothing are not read, and part what they stand between.
        ([5, 0, 5], 99, 300, [(10, [(0, 0, 1, 0, 0, 10), (0, 2, 3, 20, 20, 30)])]),
        ([0, 5, 0], 99, 300, [(5, [(0, 1, 2, 10, 10, 20)])]),
        ([0, 0, 0], 99, 300, []),
        # Nor do they count: 200 bytes are read here.
        ([5, 0, 5], 99, 200, [(10, [(0, 0, 1, 0, 0, 10), (0, 2, 3, 20, 20, 30)])]),
        # One row is enough, and a whole row group may be kept.
        ([1, 0, 0], 1, 300, [(1, [(0, 0, 1, 0, 0, 10)])]),
        ([10, 0, 0], 10, 300, [(10, [(0, 0, 1, 0, 0, 10)])]),
    ],
)  # fmt: skip
def test_where_a_shard_ends(
    selected: list[int], max_rows: int, shard_bytes: int, expected: list[tuple[int, list[tuple[int, ...]]]]
) -> None:
    assert told(cut(THREE, selected, max_rows, shard_bytes)) == expected


def test_files_follow_each_other_and_are_never_joined() -> None:
    files = [source(0, (10, 1), (10, 1)), source(1), source(2, (10, 1)), source(3, (4, 1))]
    assert told(cut(files, [3, 3, 3, 3], 9)) == [
        (9, [(0, 0, 2, 0, 0, 20), (2, 0, 1, 0, 0, 10)]),
        (3, [(3, 0, 1, 0, 0, 4)]),
    ]
    (shard,) = cut(files, [0, 0, 3, 0], 9)
    assert shard == ShardCut(
        (SourceRows("/in/2", "2.parquet", "digest 2", 2, 0, 1, 0, 0, 10, "bitmap 2", (2, 7)),), 3
    )


def test_only_rows_that_follow_each_other_are_joined() -> None:
    # The second file's first row group begins where the first file's last one ended.
    files = [source(0, (10, 1)), source(1, (0, 1), (10, 1))]
    assert told(cut(files, [3, 0, 3], 9)) == [(6, [(0, 0, 1, 0, 0, 10), (1, 1, 2, 0, 0, 10)])]


class Rows:
    """Selected rows of files, and what was asked."""

    def __init__(self, selected: dict[int, list[int]]) -> None:
        self.selected = selected
        self.asked: list[tuple[int, int, int]] = []

    def __call__(self, file: int, start: int, stop: int) -> NDArray[np.bool_]:
        self.asked.append((file, start, stop))
        return np.isin(np.arange(start, stop), self.selected[file])


def test_a_row_group_with_more_rows_than_a_shard_is_cut_at_selected_rows() -> None:
    rows = Rows({0: [12, 13, 15, 17, 18]})
    files = [source(0, (10, 1), (10, 1), (10, 1))]
    # Each part begins with a selected row but the first, which begins with its row group.
    assert told(cut(files, [1, 5, 1], 2, kept=rows)) == [
        (1, [(0, 0, 1, 0, 0, 10)]),
        (2, [(0, 1, 2, 10, 10, 15)]),
        (2, [(0, 1, 2, 10, 15, 18)]),
        (2, [(0, 1, 3, 10, 18, 30)]),
    ]
    assert rows.asked == [(0, 10, 20)]


def test_a_full_multiple_of_a_shard_leaves_no_empty_part() -> None:
    rows = Rows({0: [0, 3, 5, 9]})
    assert told(cut([source(0, (10, 1))], [4], 2, kept=rows)) == [
        (2, [(0, 0, 1, 0, 0, 5)]),
        (2, [(0, 0, 1, 0, 5, 10)]),
    ]
    assert told(cut([source(0, (10, 1))], [4], 4)) == [(4, [(0, 0, 1, 0, 0, 10)])]
    rows = Rows({0: [0, 3, 5, 9]})
    assert [shard.rows for shard in cut([source(0, (10, 1))], [4], 1, kept=rows)] == [1, 1, 1, 1]
    assert [shard.rows for shard in cut([source(0, (10, 1))], [4], 3, kept=rows)] == [3, 1]


def test_parts_of_one_row_group_count_its_bytes_each() -> None:
    rows = Rows({0: [0, 3, 5, 9]})
    files = [source(0, (10, 60), (10, 60))]
    shards = cut(files, [4, 1], 3, shard_bytes=100, kept=rows)
    assert told(shards) == [
        (3, [(0, 0, 1, 0, 0, 9)]),
        (1, [(0, 0, 1, 0, 9, 10)]),
        (1, [(0, 1, 2, 10, 10, 20)]),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_every_selected_row_is_in_one_shard(seed: int) -> None:
    rng = np.random.default_rng(seed)
    files, selected, rows = [], [], Rows({})
    for number in range(int(rng.integers(1, 4))):
        groups = [(int(n), int(n) * 10) for n in rng.integers(0, 12, int(rng.integers(0, 5)))]
        files.append(source(number, *groups))
        keep = rng.random(sum(n for n, _ in groups)) < rng.choice([0, 0.2, 1])
        rows.selected[number] = np.flatnonzero(keep).tolist()
        edges = np.cumsum([0, *(n for n, _ in groups)])
        selected += [int(keep[a:b].sum()) for a, b in pairwise(edges.tolist())]
    max_rows, shard_bytes = int(rng.integers(1, 9)), int(rng.integers(1, 200))
    shards = cut(files, selected, max_rows, shard_bytes, rows)
    read = []
    for shard in shards:
        found = [
            (p.file, row) for p in shard.pieces for row in rows.selected[p.file] if p.start <= row < p.stop
        ]
        assert len(found) == shard.rows
        assert 0 < shard.rows <= max_rows
        read += found
    assert read == [(file, row) for file in rows.selected for row in rows.selected[file]]


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (0, 64 * MIB),
        (96 * 64 * MIB, 64 * MIB),
        (96 * 64 * MIB + 1, 128 * MIB),
        (96 * 128 * MIB, 128 * MIB),
        (96 * 128 * MIB + 1, 256 * MIB),
        (10**15, 8 * 1024 * MIB),
    ],
)
def test_shards_grow_by_powers_of_two_up_to_a_limit(total: int, expected: int) -> None:
    assert shard_bytes_for(total) == expected
