"""Find packed shards in a file, folder, run or output folder, and open them by format."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from pathlib import Path

from schemas.errors import ConfigError
from schemas.run import FileRecord, RunManifest
from schemas.sft import FLOW, SPLIT_NAMES, SPLITS, StorageFormat
from schemas.sft_memmap import MEMMAP_FORMAT, MEMMAP_MANIFEST
from tasks.run.find import Found, Kind, Location, files_below, find
from tasks.sft.shards.memmap_reader import MemmapShard
from tasks.sft.shards.npy_reader import NpyShard
from tasks.sft.shards.parquet_reader import ParquetShard
from tasks.sft.shards.shard import Shard
from tasks.storage.reading import parse_json, read_bytes

_SUFFIXES = {".parquet": StorageFormat.PARQUET, ".npy": StorageFormat.NPY}
_SHARDS: dict[StorageFormat, type[ParquetShard] | type[MemmapShard] | type[NpyShard]] = {
    StorageFormat.PARQUET: ParquetShard,
    StorageFormat.MEMMAP: MemmapShard,
    StorageFormat.NPY: NpyShard,
}
_MAX_MANIFEST = 1 << 20


def shard_format(path: Path) -> StorageFormat | None:
    """Return the format of the shard at `path` by name and kind; `None` if it is not a shard."""
    if path.is_dir():
        return StorageFormat.MEMMAP if _is_memmap(path) else None
    return _SUFFIXES.get(path.suffix) if path.is_file() else None


def _is_memmap(folder: Path) -> bool:
    if (folder / "input_ids.npy").is_file():
        return True
    try:
        manifest = parse_json(read_bytes(folder / MEMMAP_MANIFEST, _MAX_MANIFEST))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and manifest.get("format") == MEMMAP_FORMAT


def open_shard(path: Path | str) -> Shard:
    """Return the shard at a local path, or behind a URI (text); the file is opened on first access.

    Raises:
        ConfigError: `missing_path`, the path does not exist or is not a shard.
    """
    if isinstance(path, str):
        return ParquetShard(path)
    _check_there(path)
    found = shard_format(path)
    if found is None:
        raise ConfigError(
            "this is not a packed shard; expected a .parquet or .npy file, or a memmap folder with manifest.json",
            code="missing_path",
            where=str(path),
        )
    return _SHARDS[found](path)


def find_shards(path: Path, split: str | None = None) -> list[Path]:
    """Find the packed shards at `path`, in order; at least one.

    Args:
        path: a shard, a folder with shards anywhere below (links to shards count), a run, or an output folder
            (its latest run).
        split: take only this split of a run or an output folder.

    Raises:
        ConfigError: `missing_path`, there are none; `not_packed`, a run of another flow; `unpublished`, a run without
            a manifest; `run_below`, a folder with runs somewhere below.
    """
    if shard_format(path) is not None:
        return [path]
    found = find(path)
    if found.kind is Kind.FILE:
        open_shard(path)  # raises
    if not found.is_run:
        shards = [shard for shard in files_below(path, is_folder_shard) if shard_format(shard) is not None]
    else:
        shards = run_shards(found, split)
        for shard in shards:
            if shard_format(shard) is None:
                raise ConfigError(
                    "this shard of the run is missing; run its flow again to restore it",
                    code="missing_path",
                    where=str(shard),
                )
    if not shards:
        raise ConfigError(
            f"no packed shards found{f' for split {split!r}' if found.is_run and split else ''}; expected "
            ".parquet or .npy files, memmap folders, a run or an output folder of pack-sft",
            code="missing_path",
            where=str(path),
        )
    return shards


def is_folder_shard(path: Path) -> bool:
    """Return whether this is a memmap shard, which is a folder."""
    return path.is_dir() and shard_format(path) is not None


def run_shards(found: Found[Location], split: str | None = None) -> list[Location]:
    """List the shards of a run, each once, as named in its manifest.

    Args:
        split: take only this split, in the order of the links in `splits/{split}`; otherwise all, in the order of
            their paths. Links are read from the manifest, not followed: in a copied run they may be files.

    Raises:
        ConfigError: `not_packed`, `unpublished`.
    """
    manifest = packed_manifest(found)
    if split is None:
        shards = {shard for record in manifest.outputs if (shard := shard_of(record)) is not None}
        return [found.at(shard) for shard in sorted(shards, key=lambda shard: shard.split("/"))]
    return [found.at(shard) for _, shard in split_links(manifest, split)]


def packed_manifest(found: Found[Location]) -> RunManifest:
    """Return the manifest of a published run of pack-sft.

    Raises:
        ConfigError: `not_packed`, it belongs to another flow or is damaged; `unpublished`, there is none.
    """
    return found.manifest_of(FLOW, "packed shards", "not_packed")


def split_links(manifest: RunManifest, split: str) -> list[tuple[str, str]]:
    """List each link in `splits/{split}`: its name, and its shard relative to the run's folder."""
    folder = f"{SPLITS}/{split}"
    return [
        (link.removeprefix(f"{folder}/"), posixpath.normpath(f"{folder}/{target}"))
        for link, target in sorted(manifest.links.items())
        if link.startswith(f"{folder}/")
    ]


def shard_of(output: FileRecord) -> str | None:
    """Return the shard to which this file of a run belongs: `datasets/{name}/{hash}/{split}/{shard}`."""
    parts = output.path.split("/")
    return "/".join(parts[:5]) if parts[0] == "datasets" else None


def of_split(
    shards: list[Location], below: Sequence[Sequence[str]], split: str | None, where: str
) -> list[Location]:
    """Select the shards of one split, if some are in folders named after splits; otherwise return all.

    Args:
        below: for each shard, the names on the path from the searched folder to it.
        split: `None` if there must not be several.

    Raises:
        ConfigError: `missing_split`, there is no such split; `several_splits`, there are several and none is chosen.
    """
    # The nearest folder counts: a data set may itself be called "test".
    splits = [next((name for name in reversed(names[:-1]) if name in SPLIT_NAMES), None) for names in below]
    named = sorted({name for name in splits if name is not None})
    if split is None and len(set(splits)) > 1 and named:
        raise ConfigError(
            f"there are shards of {' and '.join(named)}; name the folder of one split, or use create_sft_dataset",
            code="several_splits",
            where=where,
        )
    if split is None or not named:
        return shards
    chosen = [shard for shard, name in zip(shards, splits, strict=True) if name == split]
    if not chosen:
        raise ConfigError(
            f"there is no split {split!r}; the splits are {', '.join(named)}",
            code="missing_split",
            where=where,
        )
    return chosen


def _check_there(path: Path) -> None:
    if not path.exists():
        raise ConfigError("nothing is there", code="missing_path", where=str(path))
