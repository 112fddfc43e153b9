"""Flipped bits in loose shards, which no manifest of a run proves: each format has digests or checksums."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from sft.shard_files import random_rows
from sft.test_writers import bins_of

from schemas.errors import GristmillError
from schemas.sft import StorageConfig, StorageFormat
from tasks.outputs.validate import validate_path
from tasks.sft.shards.shard import ShardMetadata
from tasks.sft.shards.writers import SUFFIXES, open_writer

_FLIPS = 80


def is_valid(path: Path) -> bool:
    try:
        return validate_path(path).ok
    except GristmillError:
        return False


@pytest.mark.parametrize("storage_format", StorageFormat)
def test_no_flipped_bit_of_the_data_passes(storage_format: StorageFormat, tmp_path: Path) -> None:
    rows = random_rows(200)
    shard = tmp_path / f"shard{SUFFIXES[storage_format]}"
    width = max(len(ids) for ids, _, _ in rows)
    with open_writer(
        shard, StorageConfig(format=storage_format), ShardMetadata(), len(rows), width
    ) as writer:
        writer.write_block(bins_of(rows))
        writer.finalize()
    assert is_valid(shard)
    path = shard / "input_ids.npy" if shard.is_dir() else shard
    intact = path.read_bytes()
    end = len(intact)
    if storage_format is StorageFormat.PARQUET:
        # The footer has no checksum.
        end -= 8 + int.from_bytes(intact[-8:-4], "little")
    elif storage_format is StorageFormat.NPY:
        # The digest itself follows.
        end = intact.index(b"\ngristmill metadata ")
    rng = random.Random(12)
    for _ in range(_FLIPS):
        damaged = bytearray(intact)
        place = rng.randrange(end)
        damaged[place] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        assert not is_valid(shard), place
    path.write_bytes(intact)
    assert is_valid(shard)
