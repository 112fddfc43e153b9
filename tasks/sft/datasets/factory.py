"""Create a data set from a location or a list of shards."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from schemas.errors import ConfigError
from schemas.sft import BLEND, StorageFormat
from tasks.run.find import Found, Kind, content_of, find, find_uri, is_file, local_path, names_below
from tasks.run.find import Location as AnyLocation
from tasks.sft.datasets.base import SftDataset
from tasks.sft.datasets.blend import BlendedDataset
from tasks.sft.datasets.locate import Location, locate
from tasks.sft.datasets.order import WINDOW
from tasks.sft.datasets.packed import (
    MultiShardDataset,
    PackedMemmapDataset,
    PackedNpyDataset,
    PackedParquetDataset,
)
from tasks.sft.shards.find import packed_manifest, shard_format
from tasks.storage.listing import is_pattern
from tasks.storage.reading import parse_json

_CLASSES: dict[StorageFormat, type[MultiShardDataset]] = {
    StorageFormat.PARQUET: PackedParquetDataset,
    StorageFormat.MEMMAP: PackedMemmapDataset,
    StorageFormat.NPY: PackedNpyDataset,
}
# Endings that a blend path may lack: Megatron-style blends name shards without them.
_ENDINGS = ("", ".parquet", ".npy")


def create_sft_dataset(
    spec: Location | Sequence[Location], split: str = "train", tokenizer: Any = None, **options: Any
) -> SftDataset:
    """Create a data set from any location of packed data.

    A run, or an output folder (its latest run at the time of the call), becomes its blend: one data set for each
    configured one, weighted as in `blend.json`. A run with a single data set, and anything else, becomes the shards
    in order.

    Args:
        spec: a shard, a folder, a glob, a run, an output folder, a `blend.json` or the folder with one, a URI of one
            of these, or a list of shards.
        split: the split of a run, an output folder, or a folder with a subfolder of this name.
        tokenizer: see `MultiShardDataset`.
        options: other arguments of `MultiShardDataset`. With `pad_cu_seqlens`, the default pack metadata are those of
            the run.

    Raises:
        ConfigError: there are no packed data, a run has no such split, or an option is wrong.
    """
    if isinstance(spec, str | os.PathLike):
        run = _run(spec)
        if run is not None:
            return _blend(run, split, tokenizer, options)
        paths: Sequence[Path | str] = locate(spec, split)
    else:
        paths = [path for location in spec for path in locate(location, split)]
    return _dataset(paths, tokenizer, options)


def _dataset(paths: Sequence[Path | str], tokenizer: Any, options: dict[str, Any]) -> MultiShardDataset:
    formats = {StorageFormat.PARQUET if isinstance(path, str) else shard_format(path) for path in paths}
    single = formats.pop() if len(formats) == 1 else None
    return (_CLASSES[single] if single else MultiShardDataset)(paths, tokenizer, **options)


def _run(spec: Location) -> Found[Path] | Found[str] | None:
    """Find the folder whose blend is meant: a run, or a folder with a `blend.json`, or the folder of that file.

    The blend of an output folder is that of its latest run, also if a copy has made a file of the link to it.
    """
    path = local_path(spec)
    if path is None:
        text = os.fspath(spec)
        return None if is_pattern(text) else _blended(find_uri(text.removesuffix(f"/{BLEND}")))
    if path.name == BLEND and path.is_file():
        return _blended(find(path.resolve().parent))
    return _blended(find(path)) if path.is_dir() and shard_format(path) is None else None


def _blended(found: Found[AnyLocation]) -> Found[AnyLocation] | None:
    if found.is_run:
        packed_manifest(found)
        return found
    has_blend = found.kind is Kind.FOLDER and is_file(found.at(BLEND))
    return found if has_blend else None


def _blend(run: Found[Path] | Found[str], split: str, tokenizer: Any, options: dict[str, Any]) -> SftDataset:
    entries = _entries(run, split)
    if options.get("pad_cu_seqlens"):
        options.setdefault("pack_metadata_file_path", run.at(f"pack_metadata/{split}.json"))
    # The shards of a data set are in one folder, and their weights are its own, divided by size.
    parts = [list(part) for _, part in groupby(entries, key=lambda entry: os.path.dirname(entry[1]))]  # noqa: PTH120 - or a URI
    if len(parts) == 1:
        return _dataset([path for _, path in parts[0]], tokenizer, options)
    samples, seed = options.pop("max_num_samples", None), options.pop("seed", 1234)
    window = options.pop("window", WINDOW)
    weights = [sum(weight for weight, _ in part) for part in parts]
    # A window of the blend needs this many bins of each, so all together keep no more than one window.
    windows = [max(1, math.ceil(window * weight / sum(weights))) for weight in weights]
    datasets = [
        _dataset([path for _, path in part], tokenizer, {**options, "window": size})
        for part, size in zip(parts, windows, strict=True)
    ]
    return BlendedDataset(datasets, weights, samples, seed, window=window)


def _entries(run: Found[Path] | Found[str], split: str) -> list[tuple[float, Path | str]]:
    """Read weight and shard of each entry of a run's blend."""
    path = run.at(BLEND)
    names = _names(run) if isinstance(run.folder, str) else frozenset()
    try:
        blend = parse_json(content_of(path))
        named = blend.get(split)
        entries = [
            (float(weight), _shard(run, name, names)) for weight, name in zip(named[0::2], named[1::2], strict=True)
        ] if named else []  # fmt: skip
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"not a readable blend: {error}", code="bad_blend", where=str(path)) from error
    if not entries:
        raise ConfigError(
            f"this run has no split {split!r}; its splits: {', '.join(sorted(blend)) or 'none'}",
            code="missing_split",
            where=str(path),
        )
    return entries


def _names(run: Found[Any]) -> frozenset[str]:
    """List all files of a folder behind a URI at once: asking for each shard would take a request each."""
    if run.is_run:
        return frozenset(record.path for record in run.manifest.outputs)
    return frozenset(names_below(run.folder))


def _shard(run: Found[Path] | Found[str], name: str, names: frozenset[str]) -> Path | str:
    for ending in _ENDINGS:
        shard = run.at(f"{name}{ending}")
        if isinstance(shard, Path):
            is_there = shard_format(shard) is not None
        else:
            is_there = f"{name}{ending}" in names and shard.endswith(".parquet")
        if is_there:
            return shard
    detail = (
        ""
        if isinstance(run.folder, Path)
        else " as Parquet; other formats can only be read from local or mounted folders"
    )
    raise ConfigError(
        f"the blend names {name!r}, which does not exist{detail}",
        code="missing_path",
        where=str(run.at(BLEND)),
    )
