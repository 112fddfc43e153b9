"""Readers of packed shards, against a reader that keeps one row group as Python lists.

    python -m benchmarks.readers  # about a minute, 600 MB in the folder for temporary files

The same bins lie in Parquet with row groups of 1,000 bins, in Parquet with the row groups we write, and in memmap.
The other reader gives the same items; in order it decodes each row group once, shuffled it decodes one for nearly
every sample, so a few of those are enough to time. Ours give an epoch, in order or shuffled in windows, from a data
set made anew. Every token of every item is summed, lists apart: theirs exist already as Python objects.

Memory: a process of its own opens 1,000 shards of 16,384 bins (one file under 1,000 names) in 256 row groups each,
reads all footers, and then a bin of each; resident memory is that of the whole process, with its libraries.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.common import Took, in_turn, median, report
from schemas.sft import StorageConfig, StorageFormat
from tasks.sft.datasets import PackedSampler, create_sft_dataset
from tasks.sft.shards.bins import Bins
from tasks.sft.shards.shard import ShardMetadata
from tasks.sft.shards.writers import open_writer

BINS, SIZE, VOCABULARY, SEQUENCE = 6_000, 4096, 128_000, 512
SHARDS, SHARD_BINS = 1_000, 16_384
REPEATS, SHUFFLED = 5, 12
COLUMNS = ["input_ids", "loss_mask", "seq_start_id"]


class ListReader:
    """Keeps one row group as Python lists."""

    def __init__(self, path: Path) -> None:
        self._file = pq.ParquetFile(path)
        self._group_bins = self._file.metadata.row_group(0).num_rows
        self._group = -1
        self._columns: dict[str, list[Any]] = {}

    def __getitem__(self, number: int) -> dict[str, list[int]]:
        group, row = divmod(number, self._group_bins)
        if group != self._group:
            self._columns = self._file.read_row_group(group, columns=COLUMNS).to_pydict()
            self._group = group
        ids, mask, starts = (self._columns[name][row] for name in COLUMNS)
        return {"input_ids": ids, "seq_boundaries": [*starts, len(ids)], "loss_mask": mask}


def random_bins(num_bins: int, size: int) -> Bins:
    """Full bins of sequences of equal length, a third of each prompt; ids by rank, Zipf-like."""
    rng = np.random.default_rng(0)
    ids = np.exp(rng.random(num_bins * size, np.float32) * np.float32(np.log(VOCABULARY))).astype(np.int32)
    place = np.tile(np.arange(size, dtype=np.int32) % SEQUENCE, num_bins)
    mask = ((place >= SEQUENCE // 3) & (place < SEQUENCE - 1)).astype(np.uint8)
    starts = np.arange(0, size, SEQUENCE, dtype=np.int32)
    seq_offsets = np.arange(num_bins + 1) * len(starts)
    return Bins(ids, mask, np.arange(num_bins + 1) * size, np.tile(starts, num_bins), seq_offsets)


def write(path: Path, bins: Bins, storage: StorageConfig, size: int = SIZE) -> None:
    with open_writer(path, storage, ShardMetadata(pack_size=size), bins.num_bins, size) as writer:
        writer.write_block(bins)
        writer.finalize()


def read(dataset: Any, order: Iterable[int]) -> None:
    for number in order:
        dataset[number]["input_ids"].sum()


def read_lists(path: Path, order: Iterable[int]) -> None:
    reader = ListReader(path)
    for number in order:
        reader[number]


def window_shuffled(path: Path) -> None:
    dataset = create_sft_dataset(path)
    read(dataset, PackedSampler(dataset))


def compare(folder: Path) -> None:
    bins = random_bins(BINS, SIZE)
    large, small, memmap = folder / "large.parquet", folder / "small.parquet", folder / "memmap"
    write(large, bins, StorageConfig(row_group_size=1000))
    write(small, bins, StorageConfig())
    write(memmap, bins, StorageConfig(format=StorageFormat.MEMMAP))
    anywhere = np.random.default_rng(0).permutation(BINS).tolist()
    times = in_turn(
        REPEATS,
        lists=lambda: read_lists(large, range(BINS)),
        lists_shuffled=lambda: read_lists(large, anywhere[:SHUFFLED]),
        large=lambda: read(create_sft_dataset(large), range(BINS)),
        large_shuffled=lambda: window_shuffled(large),
        small=lambda: read(create_sft_dataset(small), range(BINS)),
        small_shuffled=lambda: window_shuffled(small),
        memmap=lambda: read(create_sft_dataset(memmap), anywhere),
    )
    samples = {name: SHUFFLED if name == "lists_shuffled" else BINS for name in times}
    labels = {
        "lists": "lists, groups of 1,000, in order",
        "lists_shuffled": "lists, groups of 1,000, shuffled",
        "large": "Parquet, groups of 1,000, in order",
        "large_shuffled": "Parquet, groups of 1,000, window shuffle",
        "small": "Parquet, groups of 64, in order",
        "small_shuffled": "Parquet, groups of 64, window shuffle",
        "memmap": "memmap, random access",
    }
    for name, label in labels.items():
        report(label, f"{samples[name] / median(times[name]).wall:,.0f} /s")

    def faster(label: str, name: str, other: str, target: float) -> None:
        """Median over the rounds of the ratio of the rates in a round."""
        pairs = zip(times[other], times[name], strict=True)
        scale = samples[name] / samples[other]
        times_faster = median([Took(a.wall / b.wall * scale, a.cpu / b.cpu * scale) for a, b in pairs])
        report(label, f"{times_faster.wall:.1f}x", f">= {target:g}x", times_faster.wall >= target)

    faster("in order, ours / lists, groups of 1,000", "large", "lists", 3)
    faster("shuffled, ours / lists, groups of 1,000", "large_shuffled", "lists_shuffled", 300)
    faster("memmap random access / lists in order", "memmap", "lists", 15)


_OPEN = """
import sys
from pathlib import Path
from tasks.sft.datasets import create_sft_dataset
resident = lambda: int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6
before = resident()
dataset = create_sft_dataset(Path(sys.argv[1]))
bins = len(dataset)
opened = resident()
for number in range(0, bins, bins // 1000):
    dataset[number]
print(before, opened, resident())
"""


def memory(folder: Path, storage_format: StorageFormat) -> None:
    """Resident megabytes of a process with 1,000 shards."""
    shards = folder / f"shards-{storage_format}"
    shards.mkdir()
    one = folder / f"one.{storage_format}"
    write(one, random_bins(SHARD_BINS, 16), StorageConfig(format=storage_format), 16)
    for shard in range(SHARDS):
        name = shards / f"shard_{shard:06d}"
        if one.is_dir():
            name.mkdir()
            for file in one.iterdir():
                os.link(file, name / file.name)
        else:
            os.link(one, name.with_suffix(f".{storage_format}"))
    done = subprocess.run(
        [sys.executable, "-c", _OPEN, str(shards)], capture_output=True, text=True, check=True
    )
    before, opened, read = map(float, done.stdout.split())
    report(f"{storage_format}: resident with the libraries alone", f"{before:.0f} MB")
    report(f"{storage_format}: resident, 1,000 shards open", f"{opened:.0f} MB", "< 100 MB", opened < 100)
    report(f"{storage_format}: resident, a bin of each read", f"{read:.0f} MB")


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare(Path(folder))
        for storage_format in (StorageFormat.PARQUET, StorageFormat.MEMMAP):
            memory(Path(folder), storage_format)


if __name__ == "__main__":
    main()
