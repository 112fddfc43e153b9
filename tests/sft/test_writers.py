"""The contract of shard writers, held by every format: what goes in comes out, whole or not at all."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from sft.shard_files import COLUMNS, Row, random_rows, rows_of

from schemas.errors import WorkError
from schemas.sft import FORMAT_VERSION, Count, StorageConfig, StorageFormat
from tasks.packing.arrays import lengths_to_offsets
from tasks.sft.shards.bin_writer import BinWriter
from tasks.sft.shards.bins import Bins
from tasks.sft.shards.find import find_shards, open_shard
from tasks.sft.shards.shard import ShardMetadata
from tasks.sft.shards.validate import validate_shard
from tasks.sft.shards.writers import open_writer, shard_name

# As another tool's shard: `random_rows` keeps masks as other tools may.
METADATA = ShardMetadata(None, 4096, Count.RUNTIME, "ab" * 32, 2**31)
OURS = dataclasses.replace(METADATA, version=FORMAT_VERSION, vocabulary_size=100)


def bins_of(rows: list[Row]) -> Bins:
    def flat(column: int, dtype: type[Any]) -> Any:
        return np.array([value for row in rows for value in row[column]], dtype)

    def offsets(column: int) -> Any:
        return lengths_to_offsets([len(row[column]) for row in rows])

    return Bins(flat(0, np.int32), flat(1, np.uint8), offsets(0), flat(2, np.int32), offsets(2))


SHAPES: dict[str, list[Row]] = {
    "no bin": [],
    "one bin of one token": [([7], [0], [0])],
    "one bin of pack size": [(list(range(4096)), [1] * 4095 + [0], [0])],
    "every token a sequence": [(list(range(300)), [0] * 300, list(range(300)))],
    "foreign masks": [([5, 6, 7], [1, 1, 1], [0, 1]), ([5], [1], [0])],
    "ids of every size": [([0, 255, 256, 65_535, 65_536, 2**31 - 1], [0, 1] * 3, [0, 2])],
    "unaligned sizes": random_rows(131, longest=37, seed=5),
    "bins all alike": [([3] * 16, [0] * 16, [0, 8])] * 70,
}


class WriterContract:
    """Laws of every writer; a subclass names its format."""

    format: StorageFormat

    def storage(self) -> StorageConfig:
        return StorageConfig(format=self.format, row_group_size=16)

    def open(self, folder: Path, rows: list[Row], metadata: ShardMetadata = METADATA) -> BinWriter:
        width = max((len(row[0]) for row in rows), default=0)
        return open_writer(folder / shard_name(0, self.format), self.storage(), metadata, len(rows), width)

    def write(self, folder: Path, rows: list[Row], blocks: Iterable[int] = ()) -> Path:
        """Write in blocks that end at `blocks`, the rest bin by bin."""
        folder.mkdir(exist_ok=True)
        with self.open(folder, rows) as writer:
            done = 0
            for end in blocks:
                writer.write_block(bins_of(rows[done:end]))
                done = end
            for bin_id in range(done, len(rows)):
                writer.write_bin(bin_id, *(np.array(column) for column in rows[bin_id]))
            assert writer.finalize()["bins_written"] == len(rows)
        return folder / shard_name(0, self.format)

    @pytest.mark.parametrize("case", SHAPES)
    def test_what_goes_in_comes_out(self, case: str, tmp_path: Path) -> None:
        rows = SHAPES[case]
        path = self.write(tmp_path, rows)
        assert find_shards(tmp_path) == [path] == list(tmp_path.iterdir())
        with open_shard(path) as shard:
            assert shard.format is self.format and shard.num_bins == len(rows)
            assert rows_of(shard, rows=50) == rows
            assert shard.metadata == METADATA
        assert self.rows_with_other_eyes(path) == rows

    def rows_with_other_eyes(self, path: Path) -> list[Row]:
        """As a consumer without this project reads them."""
        raise NotImplementedError

    def test_blocks_of_any_size_give_the_same_bytes(self, tmp_path: Path) -> None:
        rows = random_rows(100, longest=300, seed=2)
        # Parquet's row groups show where a block of them ends; the other formats show nothing.
        cuts: list[list[int]] = [[100], [16, 48, 96, 100]]
        if self.format is not StorageFormat.PARQUET:
            cuts += [[1, 2, 3, 50], [33, 33, 99]]
        first, *others = (
            self.write(tmp_path / str(number), rows, cut) for number, cut in enumerate([[], *cuts])
        )
        for other in others:
            assert contents(other) == contents(first)

    def test_records_are_of_the_files_that_are_there(self, tmp_path: Path) -> None:
        from hashlib import sha256

        rows = random_rows(5)
        with self.open(tmp_path, rows) as writer:
            writer.write_block(bins_of(rows))
            writer.finalize()
            records = writer.records(tmp_path)
        found = {
            path.relative_to(tmp_path).as_posix(): (len(data := path.read_bytes()), sha256(data).hexdigest())
            for path in tmp_path.rglob("*")
            if path.is_file()
        }
        assert {record.path: (record.bytes, record.sha256) for record in records} == found

    def test_bins_come_in_order(self, tmp_path: Path) -> None:
        rows = random_rows(3)
        with self.open(tmp_path, rows) as writer:
            writer.write_bin(0, *rows[0])
            for wrong in (0, 2):
                with pytest.raises(ValueError, match=f"expected bin 1, got {wrong}"):
                    writer.write_bin(wrong, *rows[1])
            writer.write_bin(1, *rows[1])
            writer.write_block(bins_of(rows[2:]))
            writer.finalize()
        assert rows_of(open_shard(tmp_path / shard_name(0, self.format))) == rows

    @pytest.mark.parametrize(
        "bad", [([2**31], [0], [0]), ([1], [256], [0]), ([1], [-1], [0]), ([1], [0], [2**40])]
    )
    def test_what_does_not_fit_its_type_is_refused(self, bad: Row, tmp_path: Path) -> None:
        with self.open(tmp_path, [bad]) as writer, pytest.raises(OverflowError, match="do not fit"):
            writer.write_bin(0, *(np.array(column, np.int64) for column in bad))
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("rule", "bad"),
        [
            ("starts_inside", ([1, 2], [0, 0], [0, 1, 2])),
            ("starts_at_0", ([1, 2], [0, 0], [1])),
            ("starts_increase", ([1, 2], [0, 0], [0, 1, 1])),
            ("has_sequences", ([1, 2], [0, 0], [])),
            ("not_empty", ([], [], [0])),
            ("mask_length", ([1, 2], [0], [0])),
            ("mask_binary", ([1, 2], [2, 0], [0])),
            ("ids_not_negative", ([-1, 2], [0, 0], [0])),
            ("ids_in_vocabulary", ([1, 100], [0, 0], [0])),
            ("fits_pack_size", ([1] * 4098, [0] * 4098, [0])),
            ("mask_ends_with_0", ([1, 2], [0, 1], [0])),
        ],
    )
    def test_a_bin_that_validate_refuses_is_refused(self, rule: str, bad: Row, tmp_path: Path) -> None:
        good = ([1, 2], [1, 0], [0])
        with self.open(tmp_path, [good], OURS) as writer:
            writer.write_bin(0, *good)
            with pytest.raises(ValueError, match=rf"bin 1 is not valid: .*\({rule}\)"):
                writer.write_bin(1, *bad)
            writer.finalize()
        (path,) = tmp_path.iterdir()
        assert validate_shard(path).faults == ()
        with open_shard(path) as shard:
            assert (rows_of(shard), shard.metadata) == ([good], OURS)

    def test_finalize_says_what_was_written(self, tmp_path: Path) -> None:
        rows = random_rows(5)
        with self.open(tmp_path, rows) as writer:
            writer.write_block(bins_of(rows))
            said = writer.finalize()
        assert (said["num_bins"], said["bins_written"]) == (5, 5)
        expected = {
            StorageFormat.PARQUET: {"format": "parquet", "compression": "zstd", "row_group_size": 16},
            StorageFormat.MEMMAP: {"format": "memmap", "version": "1.0", "pack_size": 4096},
            StorageFormat.NPY: {"format": "npy"},
        }
        assert said.items() >= expected[self.format].items()

    @pytest.mark.parametrize("forget", [True, False])
    def test_a_shard_that_is_not_finished_leaves_nothing(self, forget: bool, tmp_path: Path) -> None:
        rows = random_rows(40)
        with pytest.raises(KeyboardInterrupt), self.open(tmp_path, rows) as writer:
            writer.write_block(bins_of(rows))
            assert not [path for path in tmp_path.iterdir() if not path.name.startswith(".")]
            raise KeyboardInterrupt
        assert list(tmp_path.iterdir()) == []

    def test_a_killed_writer_leaves_nothing_that_looks_finished_and_the_next_one_clears_it(
        self, tmp_path: Path
    ) -> None:
        code = (
            "import os, signal, sys; sys.path.insert(0, 'tests')\n"
            "from pathlib import Path; from sft.test_writers import *; from schemas.sft import StorageFormat\n"
            f"case = Test{self.format.value.capitalize()}()\n"
            f"rows = random_rows(40); writer = case.open(Path({str(tmp_path)!r}), rows)\n"
            "writer.write_block(bins_of(rows)); os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
        assert done.returncode == -9
        [left] = tmp_path.iterdir()
        assert left.name.startswith(".tmp-")
        path = self.write(tmp_path, random_rows(3))
        assert list(tmp_path.iterdir()) == [path]

    def test_a_shard_in_the_way_is_replaced_whole(self, tmp_path: Path) -> None:
        self.write(tmp_path, random_rows(9))
        path = self.write(tmp_path, random_rows(4, seed=1))
        assert list(tmp_path.iterdir()) == [path]
        assert rows_of(open_shard(path)) == random_rows(4, seed=1)


def contents(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else sorted(path.iterdir())
    return {file.name: file.read_bytes() for file in files}


class TestParquet(WriterContract):
    format = StorageFormat.PARQUET

    def rows_with_other_eyes(self, path: Path) -> list[Row]:
        table = pq.read_table(path)
        return [tuple(row[name] for name in COLUMNS) for row in table.to_pylist()]  # type: ignore[misc]


class Announced(WriterContract):
    """Formats that say at their beginning how many bins follow."""

    @pytest.mark.parametrize("written", [2, 4])
    def test_more_or_fewer_bins_than_announced_are_refused(self, written: int, tmp_path: Path) -> None:
        rows = random_rows(4)
        with pytest.raises(WorkError, match=f"{written} bins were written, but 3 were announced"):  # noqa: SIM117
            with self.open(tmp_path, rows[:3]) as writer:
                writer.write_block(bins_of([([1], [0], [0])] * written))
                writer.finalize()
        assert list(tmp_path.iterdir()) == []


class TestMemmap(Announced):
    format = StorageFormat.MEMMAP

    def rows_with_other_eyes(self, path: Path) -> list[Row]:
        ids, mask = np.load(path / "input_ids.npy"), np.load(path / "loss_mask.npy")
        lengths = np.load(path / "packed_len.npy").astype(int)
        offsets, starts = np.load(path / "seq_offsets.npy").astype(int), np.load(path / "seq_starts.npy")
        assert (ids.dtype, mask.dtype, starts.dtype) == (np.int32, np.uint8, np.uint32)
        for row, length in enumerate(lengths):
            assert not ids[row, length:].any() and not mask[row, length:].any()
        return [
            (ids[i, :n].tolist(), mask[i, :n].tolist(), starts[offsets[i] : offsets[i + 1]].tolist())
            for i, n in enumerate(lengths)
        ]

    def test_the_manifest_has_the_fields_of_the_format_and_ours(self, tmp_path: Path) -> None:
        rows: list[Row] = [([5, 6, 7], [0, 1, 0], [0]), ([5], [0], [0])]
        with self.open(tmp_path, rows, OURS) as writer:
            writer.write_block(bins_of(rows))
            writer.finalize()
        path = tmp_path / "shard_000000"
        assert sorted(file.name for file in path.iterdir()) == [
            "input_ids.npy", "loss_mask.npy", "manifest.json", "packed_len.npy", "seq_offsets.npy", "seq_starts.npy",
        ]  # fmt: skip
        digests = {file.stem: hashlib.sha256(file.read_bytes()).hexdigest() for file in path.glob("*.npy")}
        assert json.loads((path / "manifest.json").read_bytes()) == {
            "version": "1.0", "format": "memmap_padded_v1", "num_bins": 2, "pack_size": 4096, "row_width": 3,
            "dtype": "<i4", "loss_mask_dtype": "<u1", "index_dtype": "<u4", "bins_written": 2,
            "gristmill.format_version": "3", "gristmill.count": "runtime",
            "gristmill.tokenizer_sha256": "ab" * 32, "gristmill.vocabulary_size": "100",
            **{f"gristmill.sha256.{name}": digest for name, digest in digests.items()},
        }  # fmt: skip

    def test_a_bin_longer_than_a_row_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "shard"
        with pytest.raises(WorkError, match="bin 1 has 4 tokens, but row_width is 3"):  # noqa: SIM117
            with open_writer(path, self.storage(), METADATA, 2, 3) as writer:
                writer.write_block(bins_of([([1], [0], [0]), ([1] * 4, [0] * 4, [0])]))
        assert list(tmp_path.iterdir()) == []


class TestNpy(Announced):
    format = StorageFormat.NPY

    def rows_with_other_eyes(self, path: Path) -> list[Row]:
        array = np.load(path, allow_pickle=True)
        assert array.dtype == object and array.ndim == 1
        for row in array:
            assert list(row) == list(COLUMNS)
            assert all(type(values) is list and {*map(type, values)} <= {int} for values in row.values())
        return [tuple(row[name] for name in COLUMNS) for row in array]  # type: ignore[misc]
