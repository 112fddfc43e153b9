"""A spool gives back what came in, in the order of positions, interval by interval, whatever came in."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from schemas.errors import IntegrityError
from tasks.spool.layout import MOST_ENTRIES
from tasks.spool.reader import open_spool
from tasks.spool.writer import SpoolWriter

RECORD = np.dtype(
    [("position", "<u8"), ("start", "<u8"), ("length", "<u4"), ("digest", "<u8"), ("row", "<u4")]
)
ITEM = np.dtype("<u4")
EDGES = [0, 1, 2**16, 2**52, 2**63, 2**64 - 2**16, 2**64 - 1, 2**64]


def made(rng: np.random.Generator, count: int, kinds: int) -> list[tuple[int, int, np.ndarray, int]]:
    """Rows as (position, digest, items, row): rows of one kind have the same digest and items."""
    digests = rng.integers(0, 2**64, kinds, np.uint64)
    contents = [rng.integers(0, 2**32, rng.integers(0, 9), np.uint32) for _ in range(kinds)]
    chosen = rng.integers(0, kinds, count)
    low = rng.integers(0, 2**16, count)
    return [
        (int(digests[k]) >> 16 << 16 | int(low[i]), int(digests[k]), contents[k], i)
        for i, k in enumerate(chosen.tolist())
    ]


def write(path: Path, rows: list[tuple[int, int, np.ndarray, int]], same: tuple[str, ...]) -> None:
    with SpoolWriter(path, RECORD, ITEM, same) as spool:
        for first in range(0, len(rows), 7):
            batch = rows[first : first + 7]
            records = np.zeros(len(batch), RECORD)
            for record, (position, digest, items, row) in zip(records, batch, strict=True):
                record["position"], record["digest"], record["row"] = position, digest, row
                record["length"] = len(items)
            spool.append(records, np.concatenate([items for _, _, items, _ in batch]))
        assert spool.finish(path.parent).bytes == path.stat().st_size


@pytest.mark.parametrize("same", [(), ("digest",)])
@pytest.mark.parametrize(("count", "kinds"), [(0, 1), (1, 1), (50, 3), (900, 700), (17_000, 16_000)])
def test_any_interval_gives_what_came_in(
    tmp_path: Path, count: int, kinds: int, same: tuple[str, ...]
) -> None:
    rng = np.random.default_rng(count + kinds)
    rows = made(rng, count, kinds)
    path = tmp_path / "part-000000.spool"
    write(path, rows, same)
    wanted = sorted(rows, key=lambda row: row[0])
    intervals = [(0, 2**64), *itertools.pairwise(EDGES)]
    intervals += [tuple(sorted(map(int, rng.integers(0, 2**64, 2, np.uint64)))) for _ in range(4)]
    with open_spool(path, RECORD, ITEM) as spool:
        assert spool.num_records == count
        for low, high in intervals:
            records = spool.records(low, high)
            items = spool.items(0, spool.num_items)
            found = [
                (
                    int(r["position"]),
                    int(r["digest"]),
                    items[r["start"] :][: r["length"]].tolist(),
                    int(r["row"]),
                )
                for r in records
            ]
            assert found == [(p, d, c.tolist(), i) for p, d, c, i in wanted if low <= p < high]
        total = sum(len(items) for _, _, items, _ in rows)
        distinct = sum(len(items) for items in {digest: items for _, digest, items, _ in rows}.values())
        assert spool.histogram(distinct=False).sum() == spool.weights(distinct=False).sum() == total
        expected = distinct if same else total
        assert spool.num_items == spool.histogram(distinct=True).sum() == expected
        by_bucket = np.bincount([p >> 52 for p, _, _, _ in rows], [len(i) for _, _, i, _ in rows], 4096)
        assert spool.histogram(distinct=False).tolist() == by_bucket.astype(int).tolist()
        assert len(spool.index) <= MOST_ENTRIES


def test_the_order_in_which_records_come_matters_only_among_equal_positions(tmp_path: Path) -> None:
    rows = made(np.random.default_rng(1), 300, 300)
    write(tmp_path / "a.spool", rows, ("digest",))
    write(tmp_path / "b.spool", rows[::-1], ("digest",))
    assert (tmp_path / "a.spool").read_bytes() == (tmp_path / "b.spool").read_bytes()


@pytest.mark.parametrize("kept", [0, 10, 63, -1, -64])
def test_a_truncated_spool_is_refused(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "a.spool"
    write(path, made(np.random.default_rng(2), 20, 20), ())
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(IntegrityError, match="this spool is damaged"), open_spool(path, RECORD, ITEM):
        pass


def test_nothing_is_left_of_a_spool_that_was_not_finished(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), SpoolWriter(tmp_path / "a.spool", RECORD, ITEM) as spool:
        spool.append(np.zeros(1, RECORD), np.zeros(0, ITEM))
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
