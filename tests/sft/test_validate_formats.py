"""validate on memmap and legacy `.npy` shards: the row and the rule, whoever wrote them."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sft.shard_files import Row, foreign_memmap, foreign_npy, foreign_parquet, npy_of, random_rows
from sft.test_writers import OURS, bins_of

from flows.cli.main import main
from schemas.sft import StorageConfig, StorageFormat
from tasks.outputs.validate import validate_path
from tasks.sft.shards.shard import ShardMetadata
from tasks.sft.shards.writers import SUFFIXES, open_writer

GOOD: Row = ([5, 6, 7, 8, 9], [0, 1, 0, 1, 0], [0, 3])

BROKEN: dict[str, tuple[Row, list[str]]] = {
    "three starts for two tokens": (([5, 6], [1, 0], [0, 1, 2]), ["starts_inside"]),
    "nothing at all": (([], [], []), ["not_empty", "has_sequences"]),
    "no start": (([5, 6], [1, 0], []), ["has_sequences"]),
    "unsorted starts": (([5, 6, 7, 8], [0, 0, 0, 0], [0, 3, 2]), ["starts_increase"]),
    "the same start twice": (([5, 6, 7, 8], [0, 0, 0, 0], [0, 2, 2]), ["starts_increase"]),
    "first start not 0": (([5, 6, 7, 8], [0, 0, 0, 0], [1, 3]), ["starts_at_0"]),
    "a mask of 2": (([5, 6], [2, 0], [0]), ["mask_binary"]),
    "a negative id": (([5, -1], [1, 0], [0]), ["ids_not_negative"]),
}


def faults(path: Path) -> list[tuple[str, str, str, int]]:
    return [(fault.level, fault.where, fault.rule, fault.count) for fault in validate_path(path).faults]


@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.parametrize(("name", "write"), [("s", foreign_memmap), ("s.npy", foreign_npy)])
def test_a_broken_row_of_another_tool_is_named(name: str, write: Any, case: str, tmp_path: Path) -> None:
    bad, rules = BROKEN[case]
    shard = write(tmp_path / name, [GOOD] * 200 + [bad, GOOD, bad])
    assert faults(shard) == [("error", f"{shard}:200", rule, 2) for rule in rules]


def test_a_mask_longer_than_its_ids_can_only_be_in_a_legacy_file(tmp_path: Path) -> None:
    shard = foreign_npy(tmp_path / "s.npy", [GOOD, ([5, 6], [1, 0, 0], [0])])
    assert faults(shard) == [("error", f"{shard}:1", "mask_length", 1)]


@pytest.mark.parametrize(("name", "write"), [("s", foreign_memmap), ("s.npy", foreign_npy)])
def test_a_foreign_mask_that_ends_in_1_is_a_warning(name: str, write: Any, tmp_path: Path) -> None:
    shard = write(tmp_path / name, [GOOD, ([5, 6], [1, 1], [0])])
    assert faults(shard) == [("warning", f"{shard}:1", "mask_ends_with_0", 1)]
    assert validate_path(shard).ok


@pytest.mark.parametrize("storage_format", list(StorageFormat), ids=lambda f: f.value)
def test_files_of_ours_are_held_to_what_they_say_of_themselves(
    storage_format: StorageFormat, tmp_path: Path
) -> None:
    bad = {
        "mask_ends_with_0": ([5, 6], [0, 1], [0]),
        "ids_in_vocabulary": ([5, 100], [1, 0], [0]),
        "fits_pack_size": ([5] * 4098, [0] * 4098, [0]),
    }
    rows = [GOOD, *bad.values()]
    shard = tmp_path / f"s{SUFFIXES[storage_format]}"
    with open_writer(shard, StorageConfig(format=storage_format), OURS, len(rows), 5000) as writer:
        writer.write_block(bins_of(rows))
        writer.finalize()
    assert faults(shard) == [("error", f"{shard}:{row}", rule, 1) for row, rule in enumerate(bad, 1)]
    counts = validate_path(shard).counts
    assert counts == {
        "files": 1, "bins": 4, "sequences": 5, "tokens": 5 + 2 + 2 + 4098, "trained_tokens": 4,
    }  # fmt: skip


def test_padding_that_is_not_0_is_an_error_of_ours_and_a_warning_of_others(tmp_path: Path) -> None:
    for metadata, level in ((OURS, "error"), (ShardMetadata(), "warning")):
        shard = tmp_path / level
        with open_writer(shard, StorageConfig(format=StorageFormat.MEMMAP), metadata, 3, 8) as writer:
            writer.write_block(bins_of([GOOD] * 3))
            writer.finalize()
        assert faults(shard) == []
        for name in ("input_ids", "loss_mask"):
            array = np.load(shard / f"{name}.npy", mmap_mode="r+")
            array[1, 7] = 1
            array.flush()
            changed = ("error", f"{shard / name}.npy", "digest", 1)
            assert faults(shard) == [(level, f"{shard}:1", "padding_is_0", 1), changed]
            array[1, 7] = 0
            array.flush()


def test_a_folder_of_all_formats_must_have_one_pack_size(tmp_path: Path) -> None:
    foreign_memmap(tmp_path / "a", [GOOD], 8)
    foreign_memmap(tmp_path / "b", [GOOD], 8)
    foreign_npy(tmp_path / "c.npy", [GOOD])
    foreign_parquet(tmp_path / "d.parquet", [GOOD])
    verdict = validate_path(tmp_path)
    assert verdict.ok and (verdict.counts["files"], verdict.counts["bins"]) == (4, 4)
    foreign_memmap(tmp_path / "e", [GOOD], 16)
    assert faults(tmp_path) == [("error", str(tmp_path), "one_pack_size", 1)]


def test_shards_that_cannot_be_read_are_all_named_and_nothing_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Harm:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path / 'harm'}",)

    array = np.empty(1, object)
    array[0] = {"input_ids": Harm()}
    npy_of(tmp_path / "a.npy", pickle.dumps(array), 1)
    cut = foreign_npy(tmp_path / "b.npy", random_rows(9))
    cut.write_bytes(cut.read_bytes()[:-9])
    odd = foreign_memmap(tmp_path / "c", random_rows(3))
    manifest = json.loads((odd / "manifest.json").read_bytes())
    (odd / "manifest.json").write_text(json.dumps({**manifest, "num_bins": 4, "row_width": 5}))
    foreign_parquet(tmp_path / "d.parquet", [GOOD])
    assert main(["validate", str(tmp_path), "--json"]) == 3
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    # Every array that disagrees is told apart.
    assert [(fault["where"], fault["rule"]) for fault in said["faults"]] == [
        (str(tmp_path / "a.npy"), "safe_pickle"),
        (str(tmp_path / "b.npy"), "readable"),
        *[(str(odd), "manifest")] * 5,
    ]
    assert "posix.system" in said["faults"][0]["detail"] and said["counts"]["bins"] == 1
    assert not (tmp_path / "harm").exists()
