"""Packed shards of every format written with numpy, pyarrow and pickle alone, as another tool would."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.sft.shards.shard import Shard

Row = tuple[list[int], list[int], list[int]]
COLUMNS = ("input_ids", "loss_mask", "seq_start_id")


def foreign_parquet(path: Path, rows: list[Row], row_group_size: int = 3) -> Path:
    kinds = (pa.int32(), pa.uint8(), pa.int32())
    columns = {
        name: pa.array([row[i] for row in rows], pa.list_(kind))
        for i, (name, kind) in enumerate(zip(COLUMNS, kinds, strict=True))
    }
    pq.write_table(pa.table(columns), path, row_group_size=row_group_size)
    return path


def foreign_memmap(path: Path, rows: list[Row], width: int | None = None) -> Path:
    path.mkdir()
    width = max((len(ids) for ids, _, _ in rows), default=0) if width is None else width
    ids, mask = np.zeros((len(rows), width), np.int32), np.zeros((len(rows), width), np.uint8)
    for i, row in enumerate(rows):
        ids[i, : len(row[0])], mask[i, : len(row[1])] = row[0], row[1]
    np.save(path / "input_ids.npy", ids)
    np.save(path / "loss_mask.npy", mask)
    np.save(path / "packed_len.npy", np.array([len(row[0]) for row in rows], np.uint32))
    np.save(path / "seq_offsets.npy", np.cumsum([0, *(len(row[2]) for row in rows)]).astype(np.uint32))
    np.save(path / "seq_starts.npy", np.array([s for row in rows for s in row[2]], np.uint32))
    manifest = {
        "version": "1.0", "format": "memmap_padded_v1", "num_bins": len(rows), "pack_size": max(width, 1),
        "row_width": width, "dtype": "<i4", "loss_mask_dtype": "<u1", "index_dtype": "<u4",
        "bins_written": len(rows),
    }  # fmt: skip
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def foreign_npy(path: Path, rows: Iterable[Any], protocol: int | None = None) -> Path:
    """`rows` are `Row`s or dicts; with a protocol, the pickle is of that one instead of numpy's choice."""
    dicts = [row if isinstance(row, dict) else dict(zip(COLUMNS, row, strict=True)) for row in rows]
    array = np.empty(len(dicts), object)
    array[:] = dicts
    if protocol is None:
        np.save(path, array, allow_pickle=True)
        return path
    return npy_of(path, pickle.dumps(array, protocol), len(dicts))


def npy_of(path: Path, pickled: bytes, rows: int) -> Path:
    """A `.npy` file whose header promises an object array of `rows` rows, before any bytes."""
    with path.open("wb") as file:
        header = {"descr": "|O", "fortran_order": False, "shape": (rows,)}
        np.lib.format.write_array_header_1_0(file, header)
        file.write(pickled)
    return path


def rows_of(shard: Shard, first: int = 0, end: int | None = None, rows: int = 128) -> list[Row]:
    """Bins as lists."""
    out: list[Row] = []
    for block in shard.blocks(first, end, rows):
        columns = (
            (block.ids, block.ids_offsets),
            (block.mask, block.mask_offsets),
            (block.starts, block.starts_offsets),
        )
        for i in range(block.num_bins):
            ids, mask, starts = (
                values[offsets[i] : offsets[i + 1]].astype(int).tolist() for values, offsets in columns
            )
            out.append((ids, mask, starts))
    return out


def random_rows(number: int, longest: int = 9, seed: int = 0, ids_below: int = 2**31) -> list[Row]:
    """Bins of 1 to `longest` tokens; masks as another tool may keep them, so a sequence's last entry may be 1."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(number):
        length = int(rng.integers(1, longest + 1))
        starts = np.unique(np.append(0, rng.integers(0, length, 3)))
        # Ids of every size a pickle writes differently.
        ids = rng.integers(0, ids_below, length) >> rng.integers(0, 24, length)
        rows.append((ids.tolist(), rng.integers(0, 2, length).tolist(), starts.tolist()))
    return rows
