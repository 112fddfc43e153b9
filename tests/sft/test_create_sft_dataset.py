"""From what pack-sft leaves behind to batches: runs, blends, splits, links, URIs, aligned padding."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from support import GSM8K, chat, config_of, mill_serially, write_jsonl

from schemas.errors import ConfigError
from tasks.sft import datasets as readers
from tasks.sft.datasets import (
    PackedLoader,
    PackedSampler,
    SftDataset,
    create_sft_dataset,
)
from tasks.sft.shards.find import find_shards

SIZE = 128


def packed(output: Path, tokenizer: Path, **changes: Any) -> Path:
    """A run folder: `many` with 300 conversations and `few` with 40, of equal weight."""
    sources = {
        name: write_jsonl(
            output.parent / f"{name}.jsonl", [chat(f"{name} {i}?", "Yes. " * (i % 9 + 1)) for i in count]
        )
        for name, count in (("many", range(300)), ("few", range(40)))
    }
    datasets = [{"name": name, "path": str(path)} for name, path in sources.items()]
    config = config_of(
        output, sources["many"], tokenizer,
        **{"datasets": datasets, "pack": {"size": SIZE}, "splits": {"train": 0.7, "valid": 0.3, "test": 0}}
        | {"storage": {"shard_tokens": 2000}} | changes,
    )  # fmt: skip
    manifest, _ = mill_serially(config)
    return output / "runs" / manifest.run_hash


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory, small_tokenizer: Path) -> Path:
    output = tmp_path_factory.mktemp("readers") / "out"
    packed(output, small_tokenizer)
    return output


def rows_below(folder: Path) -> list[tuple[Any, ...]]:
    """The rows of the shards as plain pyarrow reads them."""
    return [
        (row["input_ids"], [*row["seq_start_id"], len(row["input_ids"])], row["loss_mask"])
        for shard in sorted(folder.iterdir())
        for row in pq.read_table(shard).to_pylist()
    ]


def as_row(item: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(value.tolist() for value in item.values())


def test_a_run_gives_its_blend(output: Path) -> None:
    run = (output / "latest").resolve()
    blends = [create_sft_dataset(spec) for spec in (output, run, f"file://{output}", output / "blend.json")]
    wanted = [as_row(item) for item in blends[0]]
    for blend in blends:
        assert isinstance(blend, readers.BlendedDataset)
        assert [as_row(item) for item in blend] == wanted
        assert blend.weights == pytest.approx([0.5, 0.5])
        assert {type(part) for part in blend.datasets} == {readers.PackedParquetDataset}
    rows = rows_below(output / "splits" / "train")
    assert len(blends[0]) == len(rows) > 10
    assert {str(row) for row in wanted} <= {str(row) for row in rows}
    # Equal weights: the few come round again.
    few = {str(row) for row in wanted if str(row) in {str(as_row(item)) for item in blends[0].datasets[1]}}
    assert max(Counter(map(str, wanted))[row] for row in few) > 1


def test_splits(output: Path) -> None:
    for split in ("train", "valid"):
        rows = sorted(map(str, rows_below(output / "splits" / split)))
        for spec in (output / "splits", output / "latest" / "splits", output / "splits" / split):
            dataset = create_sft_dataset(spec, split=split)
            assert isinstance(dataset, readers.PackedParquetDataset)
            assert sorted(str(as_row(item)) for item in dataset) == rows
        globbed = create_sft_dataset(str(output / "splits" / split / "*.parquet"))
        assert sorted(str(as_row(item)) for item in globbed) == rows
    for spec in (
        output,
        output / "splits",
        output / "latest" / "datasets",
        f"local://{output}/latest/datasets",
    ):
        with pytest.raises(ConfigError) as caught:
            create_sft_dataset(spec, split="test")
        assert caught.value.code == "missing_split" and "train, valid" in caught.value.message


def test_splits_are_never_mixed(output: Path) -> None:
    """A class has no argument for the split: a folder with several is refused."""
    rows = sorted(map(str, rows_below(output / "splits" / "valid")))
    for spec in (output / "latest" / "datasets", f"local://{output}/latest/datasets"):
        assert sorted(str(as_row(item)) for item in create_sft_dataset(spec, split="valid")) == rows
    for spec in (output, output / "latest", output / "splits", f"local://{output}/latest/datasets"):
        with pytest.raises(ConfigError) as caught:
            readers.PackedParquetDataset(spec)
        assert caught.value.code == "several_splits"
    # The folders above are not asked.
    assert len(readers.PackedParquetDataset(output / "splits" / "valid")) == len(rows)


def test_a_run_with_one_data_set_gives_its_shards_in_order(tmp_path: Path, small_tokenizer: Path) -> None:
    source = write_jsonl(tmp_path / "chats.jsonl", [chat(f"{i}?", "Yes. " * (i % 9 + 1)) for i in range(100)])
    for name, kind in (
        ("memmap", readers.PackedMemmapDataset),
        ("npy", readers.PackedNpyDataset),
        ("parquet", readers.PackedParquetDataset),
    ):
        storage = {"format": name, "shard_tokens": 1000}
        mill_serially(config_of(tmp_path / "out", source, small_tokenizer, storage=storage))
        dataset = create_sft_dataset(tmp_path / "out")
        assert type(dataset) is kind and len(dataset.paths) > 1
        assert dataset.metadata.pack_size == 128 and dataset.validate().ok
        rows = [as_row(item) for item in dataset]
        if name == "parquet":
            assert rows == rows_below(tmp_path / "out" / "splits" / "train")
        else:
            assert len(rows) > 10


@pytest.mark.parametrize("storage_format", ["memmap", "npy"])
def test_a_blend_of_other_formats(
    storage_format: str, output: Path, tmp_path: Path, small_tokenizer: Path
) -> None:
    run = packed(tmp_path / "out", small_tokenizer, storage={"shard_tokens": 2000, "format": storage_format})
    blend, parquet = create_sft_dataset(run), create_sft_dataset(output)
    assert isinstance(blend, readers.BlendedDataset)
    assert [as_row(item) for item in blend] == [as_row(item) for item in parquet]


def test_latest_is_resolved_once(tmp_path: Path, small_tokenizer: Path) -> None:
    first = packed(tmp_path / "out", small_tokenizer)
    datasets = [
        create_sft_dataset(spec)
        for spec in (
            tmp_path / "out",
            tmp_path / "out" / "splits" / "train",
            f"{tmp_path}/out/splits/train/*.parquet",
        )
    ]
    second = packed(tmp_path / "out", small_tokenizer, seed=7)
    assert (tmp_path / "out" / "latest").resolve() == second != first
    # They are opened only now.
    for dataset in datasets:
        parts = dataset.datasets if isinstance(dataset, readers.BlendedDataset) else [dataset]
        paths = [path for part in parts if isinstance(part, readers.MultiShardDataset) for path in part.paths]
        assert paths and all(Path(path).is_relative_to(first) for path in paths)
        assert len(list(dataset)) == len(dataset)


def test_what_is_not_packed_data(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "blend.json").write_text('{"train": ["1", "datasets/x"]}')
    (tmp_path / "text.txt").write_text("x")
    for spec in ("empty", "blend.json", "text.txt"):
        with pytest.raises(ConfigError) as caught:
            create_sft_dataset(tmp_path / spec)
        assert caught.value.code == "missing_path"
    (tmp_path / "blend.json").write_text('{"train": ["heavy", "datasets/x"]}')
    with pytest.raises(ConfigError) as caught:
        create_sft_dataset(tmp_path / "blend.json")
    assert caught.value.code == "bad_blend"


def test_a_uri(output: Path) -> None:
    memory = fsspec.filesystem("memory")
    for shard in (output / "splits" / "train").iterdir():
        memory.pipe(f"/bucket/train/{shard.name}", shard.read_bytes())
    rows = rows_below(output / "splits" / "train")
    for uri in ("memory://bucket/train", "memory://bucket/train/*.parquet"):
        assert [as_row(item) for item in create_sft_dataset(uri)] == rows
    [first, *_] = sorted(memory.glob("/bucket/train/*"))
    assert [as_row(item) for item in create_sft_dataset(f"memory://{first}")] == rows[
        : len(rows_of_one(output))
    ]


def rows_of_one(output: Path) -> list[Any]:
    shard = min((output / "splits" / "train").iterdir())
    return pq.read_table(shard).to_pylist()


def batch_of(dataset: SftDataset, item: Any) -> dict[str, Any]:
    """A batch of one as arrays, whether torch is installed or not."""
    return {name: np.asarray(value) for name, value in dataset.collate_fn([item]).items()}


def test_static_shapes_from_the_runs_own_metadata(output: Path) -> None:
    blend = create_sft_dataset(output, max_seq_length=SIZE, pad_cu_seqlens=True)
    entries = json.loads((output / "latest" / "pack_metadata" / "train.json").read_text())
    assert len(entries) == 2
    most = max(entry["max_samples_per_bin"] for entry in entries)
    batches = [batch_of(blend, item) for item in blend]
    assert {tuple(batch["tokens"].shape) for batch in batches} == {(1, SIZE)}
    assert {tuple(batch["cu_seqlens"].shape) for batch in batches} == {(1, most + 3)}
    assert len({batch["max_seqlen"].item() for batch in batches}) == 1
    for batch in batches:
        ends = batch["cu_seqlens"][0, : batch["cu_seqlens_argmin"].item()]
        assert ends[-1] == SIZE and np.diff(ends).max() <= batch["max_seqlen"]


@pytest.mark.parametrize("multiple", [2, 8])
def test_padded_sequences_start_at_aligned_places(
    multiple: int, tmp_path: Path, small_tokenizer: Path
) -> None:
    run = packed(tmp_path / "out", small_tokenizer, pack={"size": SIZE, "pad_to_multiple": multiple})

    class Tokenizer:
        eos_token_id = eos_of(small_tokenizer)

    dataset = create_sft_dataset(
        find_shards(run, "train"), tokenizer=Tokenizer(), max_seq_length=SIZE, pad_seq_to_mult=multiple
    )
    plain = create_sft_dataset(find_shards(run, "train"), max_seq_length=SIZE)
    filled = 0
    for number in range(len(dataset)):
        batch, bare = batch_of(dataset, dataset[number]), batch_of(plain, plain[number])
        ends = batch["cu_seqlens"][0, : batch["cu_seqlens_argmin"].item()]
        assert not (ends % multiple).any()
        assert (bare["cu_seqlens"] == batch["cu_seqlens"]).all()
        logical = batch["cu_seqlens_unpadded"][0, : batch["cu_seqlens_unpadded_argmin"].item()]
        assert (np.diff(logical) <= np.diff(ends)).all()
        assert logical[-1] == int((~batch["padding_mask"]).sum())
        assert not batch["loss_mask"][batch["padding_mask"]].any()
        filled += int(batch["padding_mask"][0, : batch["token_count"][0]].sum())
    assert filled > 0


def eos_of(tokenizer: Path) -> int:
    from transformers import AutoTokenizer

    return int(AutoTokenizer.from_pretrained(str(tokenizer)).eos_token_id)


@pytest.mark.usefixtures("torch")
@pytest.mark.skipif(not GSM8K.is_file(), reason="GSM8K is not on this machine")
def test_an_epoch_of_real_conversations_trains_every_trained_token_once(
    tmp_path: Path, small_tokenizer: Path
) -> None:
    manifest, _ = mill_serially(config_of(tmp_path / "out", GSM8K, small_tokenizer, pack={"size": 2048}))
    dataset = create_sft_dataset(tmp_path / "out", max_seq_length=2048)
    samplers = [PackedSampler(dataset, seed=3, rank=rank, world_size=3) for rank in range(3)]
    trained = tokens = 0
    for sampler in samplers:
        for batch in PackedLoader(dataset, 4, sampler):
            trained += int(batch["loss_mask"].sum())
            tokens += sum(batch["token_count"])
    assert trained == manifest.statistics["trained_tokens"]
    padding_samples = sum(len(sampler) for sampler in samplers) - len(dataset)
    last = len(dataset[-1]["input_ids"]) - len(dataset[-1]["seq_boundaries"]) + 1
    assert tokens - padding_samples * last == manifest.statistics["tokens"] - manifest.statistics["sequences"]


def test_a_copied_run_folder_is_a_run(output: Path, tmp_path: Path) -> None:
    shutil.copytree((output / "latest").resolve(), tmp_path / "elsewhere", symlinks=True)
    copied = create_sft_dataset(tmp_path / "elsewhere")
    assert [as_row(item) for item in copied] == [as_row(item) for item in create_sft_dataset(output)]
