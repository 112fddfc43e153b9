"""convert: every pair of formats in both directions, rows kept to the last foreign mask, nothing replaced."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sft.shard_files import Row, foreign_memmap, foreign_npy, foreign_parquet, random_rows, rows_of
from sft.test_writers import METADATA, SHAPES, bins_of
from support import chat, config_of, mill_serially, write_jsonl

from flows.cli.main import main
from schemas.errors import ConfigError, IntegrityError
from schemas.sft import StorageConfig, StorageFormat
from tasks.outputs.convert import convert_shards
from tasks.outputs.validate import validate_path
from tasks.sft.shards.find import find_shards, open_shard
from tasks.sft.shards.shard import BadShardError
from tasks.sft.shards.writers import SUFFIXES, open_writer

PAIRS = list(itertools.permutations(StorageFormat, 2))
FOREIGN = {
    StorageFormat.PARQUET: foreign_parquet,
    StorageFormat.MEMMAP: foreign_memmap,
    StorageFormat.NPY: foreign_npy,
}


def place(folder: Path, name: str, storage_format: StorageFormat) -> Path:
    return folder / f"{name}{SUFFIXES[storage_format]}"


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=lambda f: f.value)
@pytest.mark.parametrize("case", SHAPES)
def test_there_and_back_gives_equal_rows(
    case: str, one: StorageFormat, other: StorageFormat, tmp_path: Path
) -> None:
    rows = SHAPES[case]
    source = FOREIGN[one](place(tmp_path, "source", one), rows)
    there, back = place(tmp_path, "there", other), place(tmp_path, "back", one)
    done = convert_shards(source, there, other)
    convert_shards(there, back, one)
    for path, storage_format in ((there, other), (back, one)):
        with open_shard(path) as shard:
            assert shard.format is storage_format and rows_of(shard) == rows
            assert shard.metadata.version is None
    assert (done.total("bins"), done.total("tokens")) == (len(rows), sum(len(row[0]) for row in rows))


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=lambda f: f.value)
def test_metadata_of_ours_survive_and_so_do_the_bytes(
    one: StorageFormat, other: StorageFormat, tmp_path: Path
) -> None:
    # The mask of a sequence's last token is 0, as files of ours must have it.
    rows = [(ids, [0] * len(mask), starts) for ids, mask, starts in random_rows(200, 300, ids_below=128_000)]
    source, there, back = (place(tmp_path, n, f) for n, f in (("a", one), ("b", other), ("c", one)))
    width = max(len(row[0]) for row in rows)
    with open_writer(source, StorageConfig(format=one), METADATA, len(rows), width) as writer:
        writer.write_block(bins_of(rows))
        writer.finalize()
    convert_shards(source, there, other)
    convert_shards(there, back, one)
    with open_shard(there) as shard:
        assert shard.metadata == METADATA
    files = [[path] if path.is_file() else sorted(path.iterdir()) for path in (source, back)]
    assert [file.read_bytes() for file in files[0]] == [file.read_bytes() for file in files[1]]
    assert validate_path(there).ok


def test_the_format_follows_the_suffix_and_must_not_contradict_it(tmp_path: Path) -> None:
    rows = random_rows(3)
    source = foreign_parquet(tmp_path / "s.parquet", rows)
    assert convert_shards(source, tmp_path / "t.npy").format == "npy"
    for target, to in ((tmp_path / "t", None), (tmp_path / "u.npy", StorageFormat.PARQUET)):
        with pytest.raises(ConfigError) as caught:
            convert_shards(source, target, to)
        assert caught.value.code == "usage" and not target.exists()
    # A folder of one shard becomes a file; a shard becomes a file in a folder.
    (tmp_path / "folder").mkdir()
    foreign_npy(tmp_path / "folder" / "a.npy", rows)
    convert_shards(tmp_path / "folder", tmp_path / "a.parquet")
    convert_shards(source, tmp_path / "in", StorageFormat.NPY)
    for path in (tmp_path / "a.parquet", tmp_path / "in" / "s.npy"):
        assert rows_of(open_shard(path)) == rows


def test_folders_keep_their_names(tmp_path: Path) -> None:
    source = tmp_path / "data"
    (source / "deep").mkdir(parents=True)
    all_rows = [random_rows(4, seed=seed) for seed in range(3)]
    foreign_parquet(source / "a.b.parquet", all_rows[0])
    foreign_npy(source / "deep" / "c.npy", all_rows[1])
    foreign_memmap(source / "deep" / "d.e", all_rows[2])
    done = convert_shards(source, tmp_path / "out", StorageFormat.MEMMAP)
    assert [shard.target for shard in done.shards] == ["a.b", "deep/c", "deep/d.e"]
    assert [rows_of(open_shard(path)) for path in find_shards(tmp_path / "out")] == all_rows
    back = convert_shards(tmp_path / "out", tmp_path / "back", StorageFormat.PARQUET)
    assert [shard.target for shard in back.shards] == ["a.b.parquet", "deep/c.parquet", "deep/d.e.parquet"]
    assert [rows_of(open_shard(path)) for path in find_shards(tmp_path / "back")] == all_rows
    sizes = [sum(f.stat().st_size for f in path.iterdir()) for path in find_shards(tmp_path / "out")]
    assert [shard.source_bytes for shard in back.shards] == sizes
    foreign_npy(source / "a.b.npy", all_rows[0])
    with pytest.raises(ConfigError, match="would get the same name"):
        convert_shards(source, tmp_path / "again", StorageFormat.MEMMAP)
    assert {path.name for path in tmp_path.iterdir()} == {"data", "out", "back"}


def test_a_run_becomes_a_folder_of_splits(
    small_tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [chat(f"Number {i}?", f"It is {i}. " * (i % 9 + 1)) for i in range(100)]
    source = write_jsonl(tmp_path / "chats.jsonl", rows)
    splits = {"train": 0.8, "valid": 0.2, "test": 0}
    config = config_of(
        tmp_path / "run", source, small_tokenizer, splits=splits, storage={"shard_tokens": 1500}
    )
    manifest, _ = mill_serially(config)
    assert main(["convert", str(tmp_path / "run"), str(tmp_path / "out"), "--to", "memmap", "--json"]) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (said["bins"], said["tokens"]) == (manifest.statistics["bins"], manifest.statistics["tokens"])
    assert said["format"] == "memmap" and said["target_bytes"] > said["source_bytes"] > 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"train", "valid"}
    for split in ("train", "valid"):
        before = sorted((tmp_path / "run" / "splits" / split).iterdir())
        after = find_shards(tmp_path / "out" / split)
        assert [path.name for path in after] == [path.stem for path in before]
        assert [rows_of(open_shard(path)) for path in after] == [rows_of(open_shard(p)) for p in before]
    assert validate_path(tmp_path / "out").ok


def test_the_table_compares_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").mkdir()
    for name in "ab":
        foreign_npy(tmp_path / "data" / f"{name}.npy", [([7] * 900, [0] * 900, [0])] * 20)
    assert main(["convert", str(tmp_path / "data"), str(tmp_path / "out"), "--to", "parquet"]) == 0
    shown = capsys.readouterr().out
    assert "36,000" in shown and "a.parquet" in shown and "all" in shown


@pytest.mark.parametrize("kind", ["file", "folder", "empty folder", "dangling link"])
def test_nothing_is_replaced(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = foreign_parquet(tmp_path / "s.parquet", random_rows(3))
    target = tmp_path / "t.npy"
    if kind == "file":
        target.write_text("mine")
    elif kind == "dangling link":
        target.symlink_to("nowhere")
    else:
        target.mkdir()
    if kind == "folder":
        (target / "mine").write_text("mine")
    assert main(["convert", str(source), str(target)]) == 2
    assert f"[exists] {target}: already exists" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"s.parquet", "t.npy"}


BAD: dict[str, tuple[Row, str]] = {
    "three starts for two tokens": (([5, 6], [1, 0], [0, 1, 2]), "starts_inside"),
    "unsorted starts": (([5, 6, 7, 8], [0, 0, 0, 0], [0, 3, 2]), "starts_increase"),
    "an empty row": (([], [], []), "not_empty"),
    "a mask longer than ids": (([5, 6], [1, 0, 0], [0]), "mask_length"),
    "a mask of 2": (([5, 6], [2, 0], [0]), "mask_binary"),
    "a negative id": (([-5, 6], [1, 0], [0]), "ids_not_negative"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_row_that_is_no_bin_is_named_and_leaves_nothing(case: str, tmp_path: Path) -> None:
    row, rule = BAD[case]
    source = tmp_path / "data"
    source.mkdir()
    foreign_parquet(source / "a.parquet", random_rows(4))
    foreign_npy(source / "b.npy", [*random_rows(70), row])
    with pytest.raises(IntegrityError) as caught:
        convert_shards(source, tmp_path / "out", StorageFormat.PARQUET)
    assert caught.value.code == "bad_row" and caught.value.where == f"{source / 'b.npy'}:70"
    assert caught.value.message.startswith(f"{rule}: ")
    assert list(tmp_path.iterdir()) == [source]


def test_an_id_that_is_no_int32_is_refused(tmp_path: Path) -> None:
    columns = {"input_ids": [[1], [2**31, 5]], "loss_mask": [[0], [0, 0]], "seq_start_id": [[0], [0]]}
    pq.write_table(pa.table(columns), tmp_path / "s.parquet")
    with pytest.raises(IntegrityError, match="2147483648 is not an int32") as caught:
        convert_shards(tmp_path / "s.parquet", tmp_path / "t.npy")
    assert caught.value.where == f"{tmp_path / 's.parquet'}:1"


def test_a_shard_that_cannot_be_read_leaves_nothing(tmp_path: Path) -> None:
    source = foreign_npy(tmp_path / "s.npy", random_rows(30))
    source.write_bytes(source.read_bytes()[:-40])
    for target in ("t.parquet", "t"):
        with pytest.raises(BadShardError):
            convert_shards(source, tmp_path / target, StorageFormat.MEMMAP if target == "t" else None)
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=lambda f: f.value)
def test_memory_does_not_grow_with_the_shard(
    one: StorageFormat, other: StorageFormat, tmp_path: Path
) -> None:
    ids = np.arange(2000, dtype=np.int32) * 31
    rows = [(ids, np.zeros(2000, np.uint8), np.array([0, 7], np.int32))] * 1000
    source = place(tmp_path, "source", one)
    with open_writer(source, StorageConfig(format=one), METADATA, len(rows), 2000) as writer:
        for bin_id, row in enumerate(rows):
            writer.write_bin(bin_id, *row)
        writer.finalize()
    tracemalloc.start()
    convert_shards(source, place(tmp_path, "target", other), other)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # 2 million tokens of 31-bit ids: 72 MB as Python numbers.
    assert peak < 30e6
