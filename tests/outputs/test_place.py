"""Where a file is: its data set and split, by its name and the folders that belong to the output."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.outputs.found import Outputs
from tasks.run.find import Found, Kind

SHARD = "datasets/chat/0a1b/valid/shard_000000.parquet"


@pytest.mark.parametrize(
    ("file", "dataset", "split"),
    [
        (SHARD, "chat", "valid"),
        ("splits/valid/000000__chat__shard_000000.parquet", "chat", "valid"),
        ("one-00000-of-00002.parquet", None, None),
        ("test-00000-of-00002.parquet", None, "test"),
        ("rejects/a-b-tokenize-000003.parquet", "a-b", None),
        ("rejects/a-pack-b-pack-test.parquet", "a-pack-b", "test"),
        ("rejects/select-000000.parquet", None, None),
        ("a-pack-test.parquet", None, None),
    ],
)
def test_folders_above_a_run_say_nothing(file: str, dataset: str | None, split: str | None) -> None:
    run = Path("/data/train/x/out/runs/0123")
    outputs = Outputs("out", "packed bins", (), run=Found(Path("out"), Kind.RUN, run))
    place = outputs.place(run / file)
    assert (place.dataset, place.split) == (dataset, split)
    assert (place.path, place.shard) == (file, Path(file).name)


@pytest.mark.parametrize(
    ("named", "file", "split"),
    [
        ("/data/valid/loose", "/data/valid/loose/a.parquet", None),
        ("/data/valid", "/data/valid/a.parquet", "valid"),
        ("/data", "/data/valid/a.parquet", "valid"),
        ("/data/valid/a.parquet", "/data/valid/a.parquet", "valid"),
        ("/valid/data/a.parquet", "/valid/data/a.parquet", None),
    ],
)
def test_a_loose_folder_may_be_named_after_its_split(named: str, file: str, split: str | None) -> None:
    assert Outputs(named, "packed bins", (Path(file),)).place(Path(file)).split == split


def test_rejects_are_chosen_with_the_shards() -> None:
    run = Path("/data/out/runs/0123")
    shards = tuple(
        run / f"datasets/{name}/0a/{split}/s.parquet" for name in "ab" for split in ("train", "test")
    )
    names = ("a-tokenize-000000", "b-tokenize-000000", "a-pack-train", "b-pack-train", "b-pack-test")
    rejects = tuple(run / f"rejects/{name}.parquet" for name in names)
    outputs = Outputs("out", "packed bins", shards, rejects, Found(Path("out"), Kind.RUN, run))
    assert [file.stem for file in outputs.chosen("train").rejects] == ["a-pack-train", "b-pack-train"]
    assert [file.stem for file in outputs.chosen(None, "a").rejects] == ["a-tokenize-000000", "a-pack-train"]
    assert [file.stem for file in outputs.chosen("test", "b").rejects] == ["b-pack-test"]
    assert outputs.chosen().rejects == rejects
