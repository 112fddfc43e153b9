"""Packed runs behind a URI: the same shards, order, items and blend as the local run, and each shard once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from support import chat, config_of, mill_serially, write_jsonl

from schemas.errors import ConfigError
from tasks.sft.datasets import BlendedDataset, PackedParquetDataset, create_sft_dataset
from tasks.sft.shards.find import find_shards
from tasks.sft.shards.remote import find_uri_shards


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory, small_tokenizer: Path) -> Path:
    """An output folder: `z` before `a`, so that the order of the blend is not that of the names."""
    folder = tmp_path_factory.mktemp("remote")
    datasets = []
    for name, count in (("z", 200), ("a", 60)):
        rows = [chat(f"{name} {n}?", "Yes. " * (n % 9 + 1)) for n in range(count)]
        datasets.append({"name": name, "path": str(write_jsonl(folder / f"{name}.jsonl", rows))})
    changes = {"storage": {"shard_tokens": 1500}, "splits": {"train": 0.7, "valid": 0.3, "test": 0}}
    mill_serially(config_of(folder / "out", folder, small_tokenizer, datasets=datasets, **changes))
    return folder / "out"


@pytest.fixture(params=["memory", "file"])
def copied(request: pytest.FixtureRequest, output: Path, tmp_path: Path) -> Iterator[str]:
    """The output folder copied by a tool that makes files of links."""
    shutil.copytree(output, tmp_path / "copy")
    if request.param == "file":
        yield f"local://{tmp_path}/copy"
        return
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path / "copy"), "/bucket/copy", recursive=True)
    yield "memory://bucket/copy"
    memory.rm("/bucket", recursive=True)


def below(run: str | Path, shards: list[Any]) -> list[str]:
    return [str(shard).partition(f"{Path(run).name}/")[2] for shard in shards]


def local(output: Path, split: str | None = None) -> list[str]:
    return below(output / "latest", [shard.resolve() for shard in find_shards(output, split)])


@pytest.mark.parametrize("split", ["train", "valid"])
def test_every_shard_of_a_split_is_found_once_in_the_order_of_the_run(
    split: str, copied: str, output: Path
) -> None:
    run = (output / "latest").resolve()
    wanted = below(run, find_shards(output, split))
    assert len(set(wanted)) == len(list((run / "splits" / split).iterdir())) > 2
    for uri in (copied, f"{copied}/latest", f"{copied}/runs/{run.name}"):
        assert below(run, find_uri_shards(uri, split)) == wanted
    # By links, not by names: the data sets keep the order of the configuration.
    assert wanted[0].startswith("datasets/z/") and wanted[-1].startswith("datasets/a/")


def test_a_run_gives_its_blend(copied: str, output: Path) -> None:
    run = (output / "latest").resolve().name
    for split in ("train", "valid"):
        wanted = create_sft_dataset(output, split)
        for uri in (
            copied,
            f"{copied}/runs/{run}",
            f"{copied}/blend.json",
            f"{copied}/runs/{run}/blend.json",
        ):
            blend = create_sft_dataset(uri, split)
            assert isinstance(blend, BlendedDataset) and isinstance(wanted, BlendedDataset)
            assert blend.weights == wanted.weights
            assert [items(item) for item in blend] == [items(item) for item in wanted]


def items(item: dict[str, Any]) -> dict[str, Any]:
    return {name: values.tolist() for name, values in item.items()}


def test_static_shapes_are_read_from_the_runs_own_metadata(copied: str, output: Path) -> None:
    options = {"max_seq_length": 128, "pad_cu_seqlens": True}
    remote, wanted = create_sft_dataset(copied, **options), create_sft_dataset(output, **options)
    assert remote.collate_fn.static == wanted.collate_fn.static is not None


def test_splits_are_never_mixed(copied: str) -> None:
    for uri in (copied, f"{copied}/latest/datasets"):
        with pytest.raises(ConfigError) as caught:
            PackedParquetDataset(uri)
        assert caught.value.code == "several_splits"
    with pytest.raises(ConfigError) as caught:
        create_sft_dataset(copied, split="test")
    assert caught.value.code == "missing_split"


def test_a_folder_above_runs_is_refused(copied: str, output: Path) -> None:
    for find, place in ((find_uri_shards, f"{copied}/runs"), (find_shards, output / "runs")):
        with pytest.raises(ConfigError, match="is in this folder") as caught:
            find(place, "train")  # type: ignore[operator]
        assert caught.value.code == "run_below"


def test_a_local_copy_without_links_is_a_run(output: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree((output / "latest").resolve(), tmp_path / "copy"))
    run = (output / "latest").resolve()
    for split in ("train", None):
        wanted = [shard.relative_to(run) for shard in find_shards(output, split)]
        assert [shard.relative_to(copy) for shard in find_shards(copy, split)] == wanted
        assert len(set(wanted)) == len(wanted)


def test_a_lost_shard_is_named(output: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree((output / "latest").resolve(), tmp_path / "copy"))
    lost = find_shards(copy, "train")[1]
    lost.unlink()
    with pytest.raises(ConfigError, match="shard of the run is missing; run its flow again") as caught:
        find_shards(copy, "train")
    assert caught.value.where == str(lost)


def test_a_run_that_is_not_published_is_refused(output: Path, tmp_path: Path) -> None:
    shutil.copytree(output, tmp_path / "out", symlinks=True)
    run = (tmp_path / "out" / "latest").resolve()
    (run / "manifest.json").unlink()
    for spec in (run, tmp_path / "out", f"local://{run}"):
        with pytest.raises(ConfigError, match="not published; run the flow to the end") as caught:
            create_sft_dataset(spec)
        assert caught.value.code == "unpublished"


def test_other_formats_behind_a_uri_are_refused_with_their_reason(
    tmp_path: Path, small_tokenizer: Path
) -> None:
    source = write_jsonl(tmp_path / "c.jsonl", [chat(f"{n}?", "Yes.") for n in range(20)])
    mill_serially(config_of(tmp_path / "out", source, small_tokenizer, storage={"format": "npy"}))
    for reader in (create_sft_dataset, lambda uri: find_uri_shards(uri, "train")):
        with pytest.raises(ConfigError, match="other formats can only be read from local or mounted folders"):
            reader(f"local://{tmp_path}/out")


def test_a_loose_blend_behind_a_uri(output: Path) -> None:
    """Another tool's blend: no manifest says which shards there are."""
    run = (output / "latest").resolve()
    memory = fsspec.filesystem("memory")
    for name in [path.relative_to(run) for path in (run / "datasets").rglob("*.parquet")] + [
        Path("blend.json")
    ]:
        memory.pipe(f"/loose/{name}", (run / name).read_bytes())
    blend, wanted = create_sft_dataset("memory://loose/blend.json"), create_sft_dataset(output)
    assert [items(item) for item in blend] == [items(item) for item in wanted]
    memory.pipe("/loose/blend.json", b'{"train": ["1", "datasets/x"]}')
    with pytest.raises(ConfigError, match="the blend names 'datasets/x', which does not exist as Parquet"):
        create_sft_dataset("memory://loose/blend.json")
    memory.rm("/loose", recursive=True)
