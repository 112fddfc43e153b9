"""The whole of pack-sft in each storage format: the same rows, links, blend, checks, and stages used again."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from sft.shard_files import Row, rows_of
from support import chat, config_of, mill_serially, write_jsonl

from schemas.sft import Count, StorageFormat
from tasks.outputs.validate import validate_path
from tasks.sft.shards.find import find_shards, open_shard

STORAGE = {"shard_tokens": 2000}
FORMATS = [storage_format.value for storage_format in StorageFormat]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, small_tokenizer: Path) -> dict[str, Any]:
    """One output folder that was packed in each format in turn; by format its run folder and what really ran."""
    folder = tmp_path_factory.mktemp("formats")
    rows = [chat(f"Number {i}?", f"It is {i}. " * (i % 9 + 1)) for i in range(300)]
    source = write_jsonl(folder / "chats.jsonl", [*rows, b"{", {"messages": []}])
    made: dict[str, Any] = {"output": folder / "out"}
    for name in FORMATS:
        config = config_of(
            folder / "out", source, small_tokenizer,
            storage={**STORAGE, "format": name}, splits={"train": 0.8, "valid": 0.2, "test": 0},
        )  # fmt: skip
        manifest, serial = mill_serially(config)
        made[name] = (folder / "out" / "runs" / manifest.run_hash, manifest, serial.executed)
    return made


def split_rows(run: Path, split: str) -> list[Row]:
    return [row for shard in find_shards(run, split) for row in rows_of(open_shard(shard))]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_holds_the_same_rows_and_is_valid(name: str, made: dict[str, Any]) -> None:
    run, manifest, _ = made[name]
    reference, of_parquet, _ = made["parquet"]
    for split in ("train", "valid"):
        assert split_rows(run, split) == split_rows(reference, split) != []
    assert manifest.statistics == of_parquet.statistics
    assert manifest.ledger == of_parquet.ledger
    for full in (True, False):
        verdict = validate_path(run, full)
        assert verdict.ok and verdict.faults == ()
        assert verdict.counts["files"] == len(manifest.outputs)
    assert len(find_shards(run)) == len(find_shards(reference)) > 3


@pytest.mark.parametrize("name", ["memmap", "npy"])
def test_a_change_of_format_writes_again_and_does_nothing_else(name: str, made: dict[str, Any]) -> None:
    _, _, executed = made[name]
    assert {task for task, _ in executed} == {"pack", "validate"}


@pytest.mark.parametrize("name", FORMATS)
def test_links_and_blend_lead_to_the_shards(name: str, made: dict[str, Any]) -> None:
    run, _, _ = made[name]
    blend = json.loads((run / "blend.json").read_bytes())
    suffix = {"parquet": ".parquet", "memmap": "", "npy": ".npy"}[name]
    for split in ("train", "valid"):
        shards = [run / f"{path}{suffix}" for path in blend[split][1::2]]
        links = sorted((run / "splits" / split).iterdir())
        assert [link.resolve() for link in links] == shards
        assert all(link.is_symlink() and not link.readlink().is_absolute() for link in links)
        assert [open_shard(link).format.value for link in links] == [name] * len(links)
        assert links == find_shards(run / "splits" / split)
        # Megatron-style names: what comes after the last dot is never part of them.
        assert all(path.endswith(f"shard_{i:06d}") for i, path in enumerate(blend[split][1::2]))


@pytest.mark.parametrize("name", FORMATS)
def test_published_files_are_second_names_of_the_stages(name: str, made: dict[str, Any]) -> None:
    run, _, _ = made[name]
    for shard in find_shards(run):
        files = [shard] if shard.is_file() else sorted(shard.iterdir())
        assert len(files) == (6 if name == "memmap" else 1)
        assert all(file.stat().st_nlink == 2 for file in files)


@pytest.mark.parametrize("name", FORMATS)
def test_a_lost_file_of_a_shard_is_found_and_made_again(
    name: str, made: dict[str, Any], small_tokenizer: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    # A copy in which hard links are hard links again.
    subprocess.run(["cp", "-a", made["output"], output], check=True)
    run = output / "runs" / made[name][0].name
    shard = find_shards(run, "train")[1].resolve()
    stage = next(
        path for path in (output / "stages").rglob(f"{shard.name}*") if made_of(path) == made_of(shard)
    )
    for path in (shard, stage):
        lost = path / "loss_mask.npy" if path.is_dir() else path
        lost.unlink()
    assert not validate_path(run, full=False).ok
    assert any(fault.rule == "missing_output" for fault in validate_path(run).errors)
    source = write_jsonl(tmp_path / "chats.jsonl", [])
    shutil.copy(made["output"].parent / "chats.jsonl", source)
    config = config_of(
        output, source, small_tokenizer,
        storage={**STORAGE, "format": name}, splits={"train": 0.8, "valid": 0.2, "test": 0},
    )  # fmt: skip
    manifest, serial = mill_serially(config)
    # The same bytes were validated before.
    assert manifest.run_hash == run.name and {task for task, _ in serial.executed} == {"pack"}
    assert validate_path(run).ok
    assert split_rows(run, "train") == split_rows(made["parquet"][0], "train")


def made_of(path: Path) -> list[int]:
    """Inodes, which the stage and the published run share."""
    return sorted(file.stat().st_ino for file in ([path] if path.is_file() else path.iterdir()))


@pytest.mark.parametrize("count", list(Count))
def test_a_memmap_row_has_room_for_the_longest_bin_as_stored(
    count: Count, small_tokenizer: Path, tmp_path: Path
) -> None:
    rows = [chat(f"{i}?", "yes " * (i % 5)) for i in range(100)]
    source = write_jsonl(tmp_path / "chats.jsonl", rows)
    config = config_of(
        tmp_path / "out", source, small_tokenizer,
        storage={"format": "memmap"}, pack={"size": 64, "count": count, "pad_to_multiple": 4},
    )  # fmt: skip
    mill_serially(config)
    [path] = find_shards(tmp_path / "out")
    manifest = json.loads((path / "manifest.json").read_bytes())
    with open_shard(path) as shard:
        longest = shard.longest_bin()
        assert manifest["pack_size"] == 64 == shard.metadata.pack_size
        assert shard.metadata.count is count
    assert manifest["row_width"] == (64 if count is Count.STORED else longest)
    assert longest <= 64 if count is Count.STORED else longest > 64
