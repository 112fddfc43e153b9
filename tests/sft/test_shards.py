"""Reading shards of every format, ours or another tool's: found, opened, in blocks, and refused when they are bad."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sft.shard_files import Row, foreign_memmap, foreign_npy, foreign_parquet, random_rows, rows_of

from schemas.errors import ConfigError
from tasks.sft.shards.find import find_shards, open_shard
from tasks.sft.shards.shard import BadShardError, ShardMetadata

WRITERS: dict[str, Callable[[Path, list[Row]], Path]] = {
    "parquet": lambda folder, rows: foreign_parquet(folder / "shard.parquet", rows),
    "memmap": lambda folder, rows: foreign_memmap(folder / "shard", rows),
    "npy": lambda folder, rows: foreign_npy(folder / "shard.npy", rows),
}


@pytest.fixture(params=WRITERS)
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[list[Row]], Path]:
    return lambda rows: WRITERS[request.param](tmp_path, rows)


@pytest.mark.parametrize("number", [0, 1, 2, 10])
def test_rows_read_back_as_another_tool_wrote_them(number: int, write: Callable[[list[Row]], Path]) -> None:
    rows = random_rows(number, seed=number)
    with open_shard(write(rows)) as shard:
        assert shard.num_bins == number
        assert rows_of(shard) == rows
        assert shard.longest_bin() == max((len(ids) for ids, _, _ in rows), default=0)
        assert shard.metadata.version is None and shard.metadata.tokenizer_digest is None


def test_any_range_of_bins_is_read_in_blocks_of_any_size(write: Callable[[list[Row]], Path]) -> None:
    rows = random_rows(20)
    with open_shard(write(rows)) as shard:
        for first, end in ((0, 20), (3, 7), (5, 5), (19, 40), (20, 20), (6, None), (2, 3)):
            for size in (1, 4, 128):
                assert rows_of(shard, first, end, size) == rows[first:end]


def test_a_closed_shard_opens_again_and_survives_pickling(write: Callable[[list[Row]], Path]) -> None:
    rows = random_rows(4)
    shard = open_shard(write(rows))
    assert rows_of(shard) == rows
    again = pickle.loads(pickle.dumps(shard))  # noqa: S301
    shard.close()
    assert rows_of(shard) == rows_of(again) == rows
    shard.close()
    again.close()


def test_a_memmap_says_its_pack_size_and_the_others_nothing(tmp_path: Path) -> None:
    rows = random_rows(3, longest=8)
    assert open_shard(foreign_memmap(tmp_path / "m", rows, 16)).metadata == ShardMetadata(pack_size=16)
    with open_shard(foreign_parquet(tmp_path / "s.parquet", rows)) as shard:
        assert shard.metadata == ShardMetadata()


def test_shards_are_found_in_folders_through_links_but_not_twice(tmp_path: Path) -> None:
    rows = random_rows(2)
    data, links = tmp_path / "data", tmp_path / "splits" / "train"
    data.mkdir()
    links.mkdir(parents=True)
    shards = [
        foreign_memmap(data / "a", rows),
        foreign_npy(data / "b.npy", rows),
        foreign_parquet(data / "c.parquet", rows),
    ]
    foreign_memmap(data / ".tmp-d.host.1-1", rows)
    (data / "notes.txt").write_text("no shard")
    (data / "again").symlink_to(links)
    for position, shard in enumerate(shards):
        (links / f"{position:06d}__{shard.name}").symlink_to(f"../../data/{shard.name}")
    assert find_shards(data) == shards
    assert find_shards(links) == sorted(links.iterdir())
    assert [rows_of(open_shard(shard)) for shard in find_shards(links)] == [rows] * 3
    assert [find_shards(shard) for shard in shards] == [[shard] for shard in shards]


@pytest.mark.parametrize("name", ["nowhere", "empty", "notes.txt"])
def test_where_no_shards_are_is_a_usage_error(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("no shard")
    for find in (find_shards, open_shard):
        with pytest.raises(ConfigError) as caught:
            find(tmp_path / name)
        assert caught.value.code == "missing_path" and caught.value.where == str(tmp_path / name)


# Memmap folders that do not agree with themselves.


def edit(change: dict[str, Any]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "manifest.json"
        manifest = {**json.loads(path.read_text()), **change}
        path.write_text(json.dumps({key: value for key, value in manifest.items() if value is not None}))

    return apply


def save(name: str, make: Callable[[np.ndarray[Any, Any]], Any]) -> Callable[[Path], None]:
    return lambda folder: np.save(folder / f"{name}.npy", make(np.load(folder / f"{name}.npy")))


U4 = partial(np.array, dtype=np.uint32)
DAMAGED_MEMMAP: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "another number of bins": (edit({"num_bins": 3, "bins_written": 3}), "manifest", "the manifest says (3,"),
    "bins not written": (edit({"bins_written": 3}), "manifest", "bins_written is 3, but num_bins is 4"),
    "another width": (edit({"row_width": 5}), "manifest", "input_ids.npy has the shape (4, 9)"),
    "another version": (edit({"version": "2.0"}), "manifest", "'2.0'"),
    "another layout": (edit({"format": "memmap_ragged"}), "manifest", "'memmap_ragged'"),
    "another dtype": (edit({"dtype": "<i8"}), "manifest", "'<i8'"),
    "no pack size": (edit({"pack_size": None}), "manifest", "pack_size"),
    "a negative number of bins": (edit({"num_bins": -1}), "manifest", "num_bins"),
    "a text for a number": (edit({"num_bins": "4"}), "manifest", "num_bins"),
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), "readable", "manifest.json"),
    "a manifest cut short": (lambda folder: os.truncate(folder / "manifest.json", 20), "manifest", "JSON"),
    "no masks": (lambda folder: (folder / "loss_mask.npy").unlink(), "readable", "loss_mask.npy"),
    "ids cut short": (lambda folder: os.truncate(folder / "input_ids.npy", 200), "readable", "200 bytes"),
    "a header cut short": (lambda folder: os.truncate(folder / "packed_len.npy", 40), "readable", "header"),
    "wide ids": (save("input_ids", lambda ids: ids.astype(np.int64)), "manifest", "has the type <i8"),
    "signed masks": (save("loss_mask", lambda mask: mask.astype(np.int8)), "manifest", "has the type |i1"),
    "ids of objects": (save("input_ids", lambda ids: ids.astype(object)), "manifest", "has the type |O"),
    "flat ids": (save("input_ids", lambda ids: ids.ravel()), "manifest", "has the shape (36,)"),
    "a length over the width": (
        save("packed_len", lambda n: n + U4([0, 9, 0, 0])),
        "index",
        "packed_len[1] is",
    ),
    "offsets that fall": (
        save("seq_offsets", lambda o: o[[0, 2, 1, 3, 4]]),
        "index",
        "decrease after entry 1",
    ),
    "offsets beyond the starts": (
        save("seq_offsets", lambda o: o + U4([0, 0, 0, 0, 1])),
        "index",
        "seq_starts",
    ),
    "offsets that do not begin at 0": (save("seq_offsets", lambda o: np.maximum(o, 1)), "index", "from 1 to"),
}


@pytest.mark.parametrize("case", DAMAGED_MEMMAP)
def test_a_memmap_that_disagrees_with_itself_is_refused(case: str, tmp_path: Path) -> None:
    damage, rule, said = DAMAGED_MEMMAP[case]
    rows = [([7] * n, [1] * n, [0, n - 1]) for n in (9, 4, 5, 6)]
    shard = foreign_memmap(tmp_path / "shard", rows)
    damage(shard)
    with pytest.raises(BadShardError) as caught:
        rows_of(open_shard(shard))
    assert caught.value.code == "bad_shard" and caught.value.where.startswith(str(shard))
    assert {found for found, _ in caught.value.findings} == {rule}
    assert said in caught.value.message


def test_a_memmap_of_more_than_2_to_the_31_tokens_is_read_at_its_end(tmp_path: Path) -> None:
    width, bins = 4096, (1 << 19) + 3
    shard = foreign_memmap(tmp_path / "shard", [([1], [0], [0])], width)
    for name, dtype in (("input_ids", np.int32), ("loss_mask", np.uint8)):
        # A sparse file: only its last row takes space.
        array = np.lib.format.open_memmap(shard / f"{name}.npy", "w+", dtype, (bins, width))
        array[-1, :5] = [0, 1, 1, 1, 0] if name == "loss_mask" else [70000, 2, 3, 4, 5]
        array.flush()
        del array
    np.save(shard / "packed_len.npy", np.full(bins, width, np.uint32))
    lengths = np.load(shard / "packed_len.npy", mmap_mode="r+")
    lengths[-1] = 5
    lengths.flush()
    np.save(shard / "seq_offsets.npy", np.arange(bins + 1, dtype=np.uint32))
    np.save(shard / "seq_starts.npy", np.zeros(bins, np.uint32))
    edit({"num_bins": bins, "bins_written": bins})(shard)
    assert (bins - 1) * width > 2**31 and (shard / "input_ids.npy").stat().st_blocks < 1000
    with open_shard(shard) as opened:
        assert rows_of(opened, bins - 1) == [([70000, 2, 3, 4, 5], [0, 1, 1, 1, 0], [0])]
        [before] = rows_of(opened, bins - 2, bins - 1)
        assert before == ([0] * width, [0] * width, [0])
