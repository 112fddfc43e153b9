"""Packed shards wherever they lie: found in a file, folder, run or output folder, and opened by format."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from schemas.errors import ConfigError, IntegrityError
from schemas.sft import FLOW, SPLIT_NAMES, SPLITS, StorageFormat
from schemas.sft_memmap import MEMMAP_FORMAT, MEMMAP_MANIFEST
from tasks.run.history import read_manifest
from tasks.run.layout import LATEST, MANIFEST, MARKER
from tasks.sft.shards.memmap_reader import MemmapShard
from tasks.sft.shards.npy_reader import NpyShard
from tasks.sft.shards.parquet_reader import ParquetShard
from tasks.sft.shards.shard import Shard
from tasks.storage.listing import entries
from tasks.storage.reading import read_bytes

_SUFFIXES = {".parquet": StorageFormat.PARQUET, ".npy": StorageFormat.NPY}
_SHARDS: dict[StorageFormat, type[ParquetShard] | type[MemmapShard] | type[NpyShard]] = {
    StorageFormat.PARQUET: ParquetShard,
    StorageFormat.MEMMAP: MemmapShard,
    StorageFormat.NPY: NpyShard,
}
_MAX_MANIFEST = 1 << 20

Found = TypeVar("Found", Path, str)


def shard_format(path: Path) -> StorageFormat | None:
    """The format of the shard at `path` by its name and kind; `None` if it is none."""
    if path.is_dir():
        return StorageFormat.MEMMAP if _is_memmap(path) else None
    return _SUFFIXES.get(path.suffix) if path.is_file() else None


def _is_memmap(folder: Path) -> bool:
    if (folder / "input_ids.npy").is_file():
        return True
    try:
        manifest = json.loads(read_bytes(folder / MEMMAP_MANIFEST, _MAX_MANIFEST))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and manifest.get("format") == MEMMAP_FORMAT


def open_shard(path: Path) -> Shard:
    """The shard at `path`, to be opened when it is first looked at.

    Raises:
        ConfigError: `missing_path`, nothing is there, or no shard.
    """
    _check_there(path)
    found = shard_format(path)
    if found is None:
        raise ConfigError(
            "this is no packed shard; expected a .parquet or .npy file, or a memmap folder with manifest.json",
            code="missing_path",
            where=str(path),
        )
    return _SHARDS[found](path)


def find_shards(path: Path, split: str | None = None) -> list[Path]:
    """The packed shards at `path`, in order; at least one.

    Args:
        path: a shard, a folder with shards anywhere below (links to shards count), a run, or an output folder,
            whose latest run is meant.
        split: of a run or an output folder, take only this split.

    Raises:
        ConfigError: `missing_path`, there are none; `not_packed`, a run of another flow.
    """
    _check_there(path)
    if shard_format(path) is not None:
        return [path]
    if path.is_file():
        open_shard(path)  # raises
    run = run_at(path)
    folder = path
    if run is not None:
        folder = run / "datasets" if split is None else run / SPLITS / split
    shards = list(_walk(folder)) if folder.is_dir() else []
    if not shards:
        raise ConfigError(
            f"no packed shards are there{f' for split {split!r}' if run and split else ''}; expected .parquet or "
            ".npy files, memmap folders, a run or an output folder of pack-sft",
            code="missing_path",
            where=str(path),
        )
    return shards


def of_split(
    shards: list[Found], below: Sequence[Sequence[str]], split: str | None, where: str
) -> list[Found]:
    """The shards of one split, if some lie in folders named for splits; otherwise all.

    Args:
        below: of each shard, the names from the folder that was searched down to it.
        split: `None` if there must not be several.

    Raises:
        ConfigError: `missing_split`, there is no such split; `several_splits`, there are several and none is chosen.
    """
    # The nearest folder counts: a data set may itself be called "test".
    found = [next((name for name in reversed(names[:-1]) if name in SPLIT_NAMES), None) for names in below]
    named = sorted({name for name in found if name is not None})
    if split is None and len(set(found)) > 1 and named:
        raise ConfigError(
            f"shards of {' and '.join(named)} lie here; name one split's folder, or use create_sft_dataset",
            code="several_splits",
            where=where,
        )
    if split is None or not named:
        return shards
    chosen = [shard for shard, name in zip(shards, found, strict=True) if name == split]
    if not chosen:
        raise ConfigError(
            f"there is no split {split!r}, there are {', '.join(named)}", code="missing_split", where=where
        )
    return chosen


def _check_there(path: Path) -> None:
    if not path.exists():
        raise ConfigError("nothing is there", code="missing_path", where=str(path))


def run_at(path: Path) -> Path | None:
    """The run folder that `path` means, if it means one."""
    for folder in (path, path / LATEST):
        if (folder / MANIFEST).is_file():
            run = folder.resolve()
            try:
                flow = read_manifest(run).flow
            except IntegrityError as error:
                raise ConfigError(error.message, code="not_packed", where=error.where) from None
            if flow != FLOW:
                raise ConfigError(
                    f"a run of {flow!r}, which makes no packed shards", code="not_packed", where=str(run)
                )
            return run
    if (path / MARKER).is_file():
        raise ConfigError(
            "this output folder has no published run yet; run its flow to the end",
            code="missing_path",
            where=str(path),
        )
    return None


def _walk(folder: Path) -> Iterator[Path]:
    for path in entries(folder):
        # Hidden names are files being written.
        if path.name.startswith("."):
            continue
        if shard_format(path) is not None:
            yield path
        elif path.is_dir() and not path.is_symlink():
            yield from _walk(path)
