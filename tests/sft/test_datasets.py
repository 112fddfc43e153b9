"""What every packed data set keeps, whatever its format: one contract, run over all of them."""

from __future__ import annotations

import os
import pickle
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sft.shard_files import Row, foreign_memmap, foreign_npy, foreign_parquet, npy_of, random_rows

from schemas.errors import ConfigError, GristmillError, InputError
from tasks.sft.datasets import (
    BlendedDataset,
    MultiShardDataset,
    PackedMemmapDataset,
    PackedNpyDataset,
    PackedParquetDataset,
    PackedSampler,
    SftDataset,
    create_sft_dataset,
)
from tasks.sft.datasets import access as bin_access

NUM_ROWS = 150
ROWS = random_rows(NUM_ROWS, 30)
Make = Callable[..., SftDataset]
# All of one pack size, which a memmap always states.
write_memmap = partial(foreign_memmap, width=30)


def key(item: dict[str, Any]) -> tuple[list[int], list[int], list[int]]:
    return tuple(item[name].tolist() for name in ("input_ids", "loss_mask", "seq_boundaries"))  # type: ignore[return-value]


def expected(row: Row) -> tuple[list[int], list[int], list[int]]:
    ids, mask, starts = row
    return ids, mask, [*starts, len(ids)]


class _Evil:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.canary}",)


def copied(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))  # noqa: S301 - made here


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same rows in every format, and cut into three shards."""
    folder = tmp_path_factory.mktemp("packed")
    foreign_parquet(folder / "one.parquet", ROWS, row_group_size=7)
    foreign_memmap(folder / "one", ROWS)
    foreign_npy(folder / "one.npy", ROWS)
    for name, write in (("parquet", foreign_parquet), ("memmap", write_memmap), ("npy", foreign_npy)):
        (folder / name).mkdir()
        for shard, (low, high) in enumerate(((0, 60), (60, 61), (61, NUM_ROWS))):
            suffix = "" if name == "memmap" else f".{name}"
            write(folder / name / f"shard_{shard:06d}{suffix}", ROWS[low:high])
    return folder


@pytest.fixture(
    params=["parquet", "memmap", "npy", "parquet shards", "memmap shards", "npy shards", "uri", "blend"],
)
def make(request: pytest.FixtureRequest, files: Path) -> Make:
    """Makes the data set anew; the rows come in their order, a blend's in one of its own."""
    makers: dict[str, Make] = {
        "parquet": lambda **how: PackedParquetDataset(files / "one.parquet", **how),
        "memmap": lambda **how: PackedMemmapDataset(str(files / "one"), **how),
        "npy": lambda **how: PackedNpyDataset(files / "one.npy", **how),
        "parquet shards": lambda **how: MultiShardDataset(sorted((files / "parquet").iterdir()), **how),
        "memmap shards": lambda **how: MultiShardDataset(files / "memmap", **how),
        "npy shards": lambda **how: create_sft_dataset(files / "npy" / "*.npy", **how),
        "uri": lambda **how: create_sft_dataset(f"local://{files}/parquet", **how),
        "blend": lambda **how: BlendedDataset(
            [MultiShardDataset(path) for path in sorted((files / "parquet").iterdir())], **how
        ),
    }
    return makers[request.param]


def is_blend(dataset: SftDataset) -> bool:
    return isinstance(dataset, BlendedDataset)


class TestContract:
    def test_items_are_the_rows(self, make: Make) -> None:
        dataset = make()
        assert len(dataset) == NUM_ROWS
        items = [key(dataset[number]) for number in range(NUM_ROWS)]
        wanted = [expected(row) for row in ROWS]
        assert sorted(items) == sorted(wanted) if is_blend(dataset) else items == wanted

    def test_any_order_gives_the_same_items(self, make: Make) -> None:
        one, other = make(window=4), make()
        for number in np.random.default_rng(0).permutation(NUM_ROWS).tolist():
            if not is_blend(one):
                assert key(one[number]) == key(other[number])
        assert [key(item) for item in other] == [key(item) for item in make()]

    def test_items_are_read_only_arrays(self, make: Make) -> None:
        item = make()[3]
        assert {name: value.dtype for name, value in item.items()} == {
            "input_ids": np.int32,
            "seq_boundaries": np.int64,
            "loss_mask": np.uint8,
        }
        for value in item.values():
            assert value.base is not None and not value.flags.writeable
        assert not any(value.flags.writeable for value in make()[-1].values())

    def test_items_compare_as_lists_do(self, make: Make) -> None:
        one, other = make(), make()
        for number in (0, 61, NUM_ROWS - 1, -1):
            item = one[number]
            ids, mask, boundaries = key(item)
            assert item == {"input_ids": ids, "seq_boundaries": boundaries, "loss_mask": mask}
            assert item == other[number] and item["seq_boundaries"] == tuple(boundaries)
            assert item["input_ids"] != [*ids, 1] and item["input_ids"] != ids[:-1]
            assert item["input_ids"][1:] == ids[1:]
        assert one[0] != one[1]
        # Anything else is numpy's, and so is what is computed.
        trained = one[0]["loss_mask"].sum()
        assert isinstance(trained, np.integer) and trained == sum(key(one[0])[1])
        assert type(one[0]["input_ids"] + 1) is np.ndarray
        assert (one[0]["input_ids"] == np.array(ids[:1])).tolist() == [
            t == ids[0] for t in one[0]["input_ids"]
        ]

    def test_out_of_range(self, make: Make) -> None:
        dataset = make()
        with pytest.raises(IndexError):
            dataset[NUM_ROWS]
        assert len(list(dataset)) == NUM_ROWS

    @pytest.mark.parametrize("samples", [None, 400])
    def test_a_negative_number_is_a_padding_sample(self, make: Make, samples: int | None) -> None:
        dataset = make(max_num_samples=samples)
        for number in (-1, -2, -len(dataset), -len(dataset) - 1):
            item, real = dataset[number], dataset[number % len(dataset)]
            assert item["input_ids"].tolist() == real["input_ids"].tolist()
            assert item["seq_boundaries"].tolist() == real["seq_boundaries"].tolist()
            assert item["loss_mask"].dtype == np.uint8 and not item["loss_mask"].any()
            assert len(item["loss_mask"]) == len(real["loss_mask"])

    def test_the_mapping_is_epochs_of_permutations(self, make: Make) -> None:
        dataset = make(max_num_samples=2 * NUM_ROWS + 10, seed=5)
        assert len(dataset) == 2 * NUM_ROWS + 10
        items = [str(key(item)) for item in dataset]
        counts = Counter(items)
        assert set(counts.values()) <= {2, 3} and sum(count == 3 for count in counts.values()) == 10
        again, other = make(max_num_samples=310, seed=5), make(max_num_samples=310, seed=6)
        assert [str(key(item)) for item in again] == items
        assert [str(key(item)) for item in other] != items
        if not is_blend(dataset):
            wanted = sorted(str(expected(row)) for row in ROWS)
            assert sorted(items[:NUM_ROWS]) == sorted(items[NUM_ROWS : 2 * NUM_ROWS]) == wanted
            assert items[:NUM_ROWS] != items[NUM_ROWS : 2 * NUM_ROWS]

    def test_fewer_samples_than_bins(self, make: Make) -> None:
        items = [str(key(item)) for item in make(max_num_samples=9)]
        assert len(set(items)) == 9
        assert not list(make(max_num_samples=0))

    def test_pickled_before_and_after_use(self, make: Make) -> None:
        dataset = make(max_num_samples=200)
        before = copied(dataset)
        items = [key(item) for item in dataset]
        after = copied(dataset)
        assert [key(item) for item in before] == items == [key(item) for item in after]
        # No bins travel with it.
        assert len(pickle.dumps(dataset)) < 40_000

    def test_a_forked_process_reads_on(self, make: Make) -> None:
        dataset = make()
        first = key(dataset[0])
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(write, str(key(dataset[1]) == key(make()[1])).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert os.read(read, 10) == b"True"
        os.close(read)
        os.close(write)
        assert key(dataset[0]) == first

    def test_threads_share_it(self, make: Make) -> None:
        dataset = make(window=8, max_num_samples=3 * NUM_ROWS)
        wanted = [key(item) for item in make(window=8, max_num_samples=3 * NUM_ROWS)]
        numbers = np.random.default_rng(1).permutation(3 * NUM_ROWS).tolist()
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda number: key(dataset[number]), numbers))
        assert found == [wanted[number] for number in numbers]

    def test_closed_and_used_again(self, make: Make) -> None:
        dataset = make()
        item = dataset[4]
        wanted = key(item)
        dataset.close()
        assert key(dataset[4]) == wanted == key(item)

    def test_iteration_is_resumed(self, make: Make) -> None:
        dataset = make()
        items = iter(dataset)
        begun = [key(next(items)) for _ in range(61)]
        state = dataset.state_dict()
        rest = [key(item) for item in items]
        assert dataset.state_dict()["position"] == 0
        resumed = make()
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert [key(item) for item in resumed] == rest
        assert [key(item) for item in resumed] == begun + rest
        with pytest.raises(ConfigError):
            make(max_num_samples=7).load_state_dict(state)

    @pytest.mark.parametrize("ranks", [1, 4])
    def test_shuffled_every_sample_comes_once(self, make: Make, ranks: int) -> None:
        dataset = make()
        samplers = [
            PackedSampler(dataset, seed=1, window=20, rank=rank, world_size=ranks) for rank in range(ranks)
        ]
        assert len({len(sampler) for sampler in samplers}) == 1
        for epoch in (0, 1):
            numbers: list[int] = []
            for sampler in samplers:
                sampler.set_epoch(epoch)
                numbers += sampler
            assert sorted(number for number in numbers if number >= 0) == list(range(NUM_ROWS))
            assert numbers.count(-1) == len(numbers) - NUM_ROWS < ranks

    def test_batches(self, make: Make) -> None:
        dataset = make()
        batch = dataset.collate_fn([dataset[0], dataset[-1]])
        assert batch["tokens"].shape[0] == 2 and batch["tokens"].shape[1] % 16 == 0
        assert not batch["loss_mask"][1].any()


def test_formats_share_one_shuffled_order(tmp_path: Path, files: Path) -> None:
    """With the row groups that are written by default."""
    foreign_parquet(tmp_path / "64.parquet", ROWS, row_group_size=bin_access.GROUP_BINS)
    orders = [
        list(PackedSampler(create_sft_dataset(path), seed=9, window=32))
        for path in (tmp_path / "64.parquet", files / "one", files / "one.npy")
    ]
    assert orders[0] == orders[1] == orders[2]


def test_nothing_is_read_before_it_is_needed(tmp_path: Path) -> None:
    bad = tmp_path / "bad.parquet"
    bad.write_bytes(b"PAR1 and then nothing")
    dataset = PackedParquetDataset(bad)
    with pytest.raises(InputError) as caught:
        len(dataset)
    assert (caught.value.code, caught.value.where) == ("bad_shard", str(bad))


def test_a_lock_held_in_the_parent_is_not_held_in_a_forked_process(files: Path) -> None:
    dataset = PackedParquetDataset(files / "one.parquet")
    assert len(dataset) == NUM_ROWS
    with dataset._access._lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if key(dataset[9]) == expected(ROWS[9]) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_window_holds_few_row_groups_and_decodes_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = random_rows(400, 5)
    path = foreign_parquet(tmp_path / "x.parquet", rows, row_group_size=10)
    decoded: list[int] = []
    original = bin_access.BinAccess._group

    def counting(self: Any, at: int, *where: int) -> Any:
        if at not in self._groups:
            decoded.append(at)
        group = original(self, at, *where)
        assert sum(group.num_bins for group in self._groups.values()) <= 50 + 2 * 10
        return group

    monkeypatch.setattr(bin_access.BinAccess, "_group", counting)
    dataset = PackedParquetDataset(path, window=50)
    sampler = PackedSampler(dataset)
    for number in sampler:
        assert key(dataset[number]) == expected(rows[number])
    assert sorted(decoded) == list(range(40))


def test_more_shards_than_may_be_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bin_access, "_OPEN_SHARDS", 2)
    rows = random_rows(30, 5)
    for write, name in ((foreign_parquet, "shard{}.parquet"), (write_memmap, "shard{}")):
        folder = tmp_path / name[-4:]
        folder.mkdir()
        for shard in range(6):
            write(folder / name.format(shard), rows[5 * shard : 5 * shard + 5])
        dataset = MultiShardDataset(folder, window=1)
        kept = []
        for number in np.random.default_rng(0).permutation(30).tolist():
            kept.append((number, dataset[number]))
            assert len(dataset._access._open) <= 2
        # What was handed out stays what it was after its shard is closed.
        assert all(key(item) == expected(rows[number]) for number, item in kept)


def test_the_nearest_folder_names_the_split(tmp_path: Path) -> None:
    for split, rows in (("train", ROWS[:9]), ("valid", ROWS[9:12])):
        folder = tmp_path / "datasets" / "test" / split
        folder.mkdir(parents=True)
        foreign_parquet(folder / "x.parquet", rows)
    assert [len(create_sft_dataset(tmp_path, split=split)) for split in ("train", "valid")] == [9, 3]
    with pytest.raises(ConfigError) as caught:
        create_sft_dataset(tmp_path, split="test")
    assert caught.value.code == "missing_split"


def test_patterns(files: Path) -> None:
    for pattern in ("memmap/*", "memmap/**", "parquet/shard_*", "npy/shard_00000[0-2].npy"):
        assert len(create_sft_dataset(f"{files}/{pattern}")) == NUM_ROWS
    with pytest.raises(ConfigError) as caught:
        create_sft_dataset(f"{files}/?emmap")
    assert caught.value.code == "missing_path"


class TestBlend:
    def test_small_ones_come_round_again_and_large_ones_are_cut(self, tmp_path: Path) -> None:
        for name, low, high in (("small", 0, 10), ("large", 10, 110)):
            foreign_parquet(tmp_path / f"{name}.parquet", ROWS[low:high])
        parts = [PackedParquetDataset(tmp_path / f"{name}.parquet") for name in ("small", "large")]
        blend = BlendedDataset(parts, [1, 1], max_num_samples=60)
        counts = Counter(str(key(item)) for item in blend)
        small = [counts[str(expected(row))] for row in ROWS[:10]]
        large = [counts[str(expected(row))] for row in ROWS[10:110]]
        assert small == [3] * 10
        assert sum(large) == 30 and max(large) == 1
        assert [blend.source(number) for number in range(4)] == [0, 1, 0, 1]
        assert len(BlendedDataset(parts, [9, 1])) == 110

    def test_every_prefix_follows_the_weights(self, files: Path) -> None:
        parts = [PackedParquetDataset(path) for path in sorted((files / "parquet").iterdir())]
        blend = BlendedDataset(parts, [0.5, 0.2, 0.3], max_num_samples=1000)
        sources = np.array([blend.source(number) for number in range(1000)])
        taken = np.cumsum(sources[:, None] == np.arange(3), axis=0)
        assert np.abs(taken - np.outer(np.arange(1, 1001), [0.5, 0.2, 0.3])).max() < 1

    @pytest.mark.parametrize(
        ("weights", "where"), [([1], "weights"), ([1, 0], "weights[1]"), ([], "weights")]
    )
    def test_weights_are_checked(self, files: Path, weights: list[float], where: str) -> None:
        part = PackedParquetDataset(files / "one.parquet")
        with pytest.raises(ConfigError) as caught:
            BlendedDataset([part, part], weights)
        assert caught.value.where == where

    def test_an_empty_part_is_refused(self, tmp_path: Path, files: Path) -> None:
        empty = PackedParquetDataset(foreign_parquet(tmp_path / "empty.parquet", []))
        with pytest.raises(InputError) as caught:
            BlendedDataset([PackedParquetDataset(files / "one.parquet"), empty], [1, 1])[0]
        assert (caught.value.code, caught.value.where) == ("no_bins", "datasets[1]")


@pytest.mark.parametrize("write", [foreign_parquet, foreign_memmap, foreign_npy])
def test_no_bins(tmp_path: Path, write: Any) -> None:
    path = write(
        tmp_path / {"foreign_parquet": "x.parquet", "foreign_npy": "x.npy"}.get(write.__name__, "x"), []
    )
    dataset = create_sft_dataset(path)
    assert len(dataset) == 0 and list(dataset) == [] and list(PackedSampler(dataset)) == []
    with pytest.raises(IndexError):
        dataset[-1]
    with pytest.raises(InputError) as caught:
        create_sft_dataset(path, max_num_samples=3)[0]
    assert caught.value.code == "no_bins"


class TestOtherToolsFiles:
    def test_wider_integers_and_further_columns(self, tmp_path: Path) -> None:
        table = pa.table(
            {
                "input_ids": pa.array([[1, 2], [3]], pa.large_list(pa.int64())),
                "source": ["a", "b"],
                "seq_start_id": pa.array([[0], [0]], pa.list_(pa.uint16())),
                "loss_mask": pa.array([[1, 1], [0]], pa.list_(pa.int8())),
            }
        )
        pq.write_table(table, tmp_path / "x.parquet")
        dataset = create_sft_dataset(tmp_path / "x.parquet")
        assert [key(item) for item in dataset] == [([1, 2], [1, 1], [0, 2]), ([3], [0], [0, 1])]
        assert dataset[0]["input_ids"].dtype == np.int32 and not dataset[0]["input_ids"].flags.writeable

    @pytest.mark.parametrize(
        ("ids", "mask"), [([2**31], [0]), ([1], [-1]), ([1, 2], [1]), (None, [1]), ([1, None], [1, 1])]
    )
    def test_rows_that_would_be_read_as_something_else(self, tmp_path: Path, ids: Any, mask: Any) -> None:
        columns = {"input_ids": pa.array([ids], pa.list_(pa.int64()))}
        columns |= {"loss_mask": pa.array([mask], pa.list_(pa.int8())), "seq_start_id": pa.array([[0]])}
        pq.write_table(pa.table(columns), tmp_path / "x.parquet")
        with pytest.raises(InputError) as caught:
            create_sft_dataset(tmp_path / "x.parquet")[0]
        assert caught.value.code == "bad_rows" and caught.value.where.startswith(f"{tmp_path}/x.parquet:0")

    def test_rows_are_validated_on_demand(self, tmp_path: Path) -> None:
        rows: list[Row] = [([1, 2], [1, 0], [0]), ([1, 2], [1, 0], [0, 1, 2])]
        dataset = create_sft_dataset(foreign_parquet(tmp_path / "x.parquet", rows))
        verdict = dataset.validate()
        assert [(fault.rule, fault.where) for fault in verdict.errors] == [
            ("starts_inside", f"{tmp_path}/x.parquet:1")
        ]
        with pytest.raises(InputError) as caught:
            dataset.collate_fn([dataset[1]])
        assert caught.value.code == "bad_rows"


def with_metadata(path: Path, **keys: Any) -> Path:
    table = pa.table(
        {name: pa.array([[0]], pa.list_(pa.int32())) for name in ("input_ids", "loss_mask", "seq_start_id")}
    )
    pq.write_table(
        table.replace_schema_metadata({f"gristmill.{name}": str(value) for name, value in keys.items()}), path
    )
    return path


class TestRefused:
    def test_mixed_pack_sizes(self, tmp_path: Path) -> None:
        with_metadata(tmp_path / "a.parquet", pack_size=8)
        second = with_metadata(tmp_path / "b.parquet", pack_size=16)
        with pytest.raises(ConfigError) as caught:
            len(create_sft_dataset(tmp_path))
        assert (caught.value.code, caught.value.where) == ("mixed_shards", str(second))

    def test_mixed_formats(self, files: Path) -> None:
        with pytest.raises(ConfigError) as caught:
            create_sft_dataset(files)
        assert caught.value.code == "mixed_shards"

    def test_another_format_than_the_class_reads(self, files: Path) -> None:
        with pytest.raises(ConfigError) as caught:
            PackedMemmapDataset(files / "one.npy")
        assert caught.value.code == "other_format"

    def test_a_pack_size_above_the_longest_row(self, tmp_path: Path) -> None:
        path = with_metadata(tmp_path / "a.parquet", pack_size=8)
        with pytest.raises(ConfigError) as caught:
            len(PackedParquetDataset(path, max_seq_length=4))
        assert caught.value.code == "too_long"
        assert PackedParquetDataset(path, max_seq_length=8).metadata.pack_size == 8

    @pytest.mark.parametrize("damage", ["malicious", "truncated", "manifest", "columns"])
    def test_files_that_are_no_shards(self, tmp_path: Path, damage: str) -> None:
        canary = tmp_path / "canary"
        if damage == "malicious":
            path = npy_of(tmp_path / "x.npy", pickle.dumps(_Evil(canary)), 1)
        elif damage == "truncated":
            path = foreign_npy(tmp_path / "x.npy", ROWS[:9])
            path.write_bytes(path.read_bytes()[:-40])
        elif damage == "manifest":
            path = foreign_memmap(tmp_path / "x", ROWS[:9])
            np.save(path / "packed_len.npy", np.zeros(8, np.uint32))
        else:
            path = tmp_path / "x.parquet"
            pq.write_table(pa.table({"input_ids": ["text"], "loss_mask": [[1]], "seq_start_id": [[0]]}), path)
        dataset = create_sft_dataset(path)
        for look in (lambda: len(dataset), lambda: dataset[0], lambda: dataset[-1]):
            with pytest.raises(InputError) as caught:
                look()
            assert caught.value.code == ("unsafe_pickle" if damage == "malicious" else "bad_shard")
            assert caught.value.where.startswith(str(path))
        assert not canary.exists()

    @pytest.mark.parametrize(
        ("path", "code"),
        [
            ("nowhere", "missing_path"),
            ("/nowhere/**", "missing_path"),
            ("nowhere/*.parquet", "missing_path"),
            ("local:///nowhere/x", "missing_path"),
            ("nosuch://bucket/x.parquet", "unsupported_uri"),
            ([], "missing_path"),
        ],
    )
    def test_nothing_there(self, path: Any, code: str) -> None:
        with pytest.raises(ConfigError) as caught:
            create_sft_dataset(path)
        assert caught.value.code == code

    @pytest.mark.parametrize(
        ("options", "where"),
        [
            ({"max_num_samples": -1}, "max_num_samples"),
            ({"pad_cu_seqlens": True}, "pack_metadata_file_path"),
            ({"pad_to_max_length": True}, "max_seq_length"),
            ({"tokenizer": object()}, "tokenizer"),
        ],
    )
    def test_arguments(self, files: Path, options: dict[str, Any], where: str) -> None:
        with pytest.raises(ConfigError) as caught:
            PackedParquetDataset(files / "one.parquet", **options)
        assert caught.value.where == where

    def test_a_shard_that_changed_since(self, tmp_path: Path) -> None:
        path = foreign_parquet(tmp_path / "x.parquet", ROWS[:9])
        dataset = PackedParquetDataset(path)
        assert len(dataset) == 9
        foreign_parquet(path, ROWS[:4])
        with pytest.raises(GristmillError):
            dataset[8]


def test_the_tokenizer_says_what_fills_up(files: Path) -> None:
    class Transformers:
        eos_token_id = 7

    class Megatron(Transformers):
        eos_id = 5

    for tokenizer, filler in ((Transformers(), 7), (Megatron(), 5)):
        dataset = PackedParquetDataset(files / "one.parquet", tokenizer)
        assert dataset.collate_fn([dataset[0]])["tokens"][0, -1] == filler
