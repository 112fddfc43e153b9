"""Resolve a location to packed shards, for local paths and URIs alike."""

from __future__ import annotations

import os
from pathlib import Path

from schemas.errors import ConfigError
from tasks.run.find import local_path
from tasks.sft.shards.find import find_shards, of_split, shard_format
from tasks.sft.shards.remote import find_uri_shards
from tasks.storage.listing import glob, is_pattern

Location = str | os.PathLike[str]


def locate(location: Location, split: str | None = None) -> list[Path] | list[str]:
    """Find the shards of a file, folder, glob, run, output folder or URI: resolved paths, or URIs.

    Links are followed here, once, so later changes of `latest` have no effect.

    Args:
        split: the split of a run or output folder, or of a folder with subfolders named after splits.

    Raises:
        ConfigError: there are no shards, or shards of several formats, or several splits and none is chosen.
    """
    text = os.fspath(location)
    path = local_path(location)
    if path is None:
        return find_uri_shards(text, split)
    if not path.exists() and is_pattern(str(path)):
        found = [Path(name) for name in glob(str(path))]
        # Skip the arrays inside a memmap shard, which `**` matches too.
        shards = [name for name in found if shard_format(name) and not shard_format(name.parent)]
        if not shards:
            raise ConfigError("no packed shards match this pattern", code="missing_path", where=text)
    else:
        path = path.resolve()
        shards = find_shards(path, split)
        if path.is_dir():
            below = [shard.parts[len(path.parts) :] for shard in shards]
            shards = of_split(shards, below, split, text)
    formats = {str(shard_format(shard)) for shard in shards}
    if len(formats) > 1:
        raise ConfigError(
            f"shards of several formats, {' and '.join(sorted(formats))}, perhaps of the same bins; name one",
            code="mixed_shards",
            where=text,
        )
    return [shard.resolve() for shard in shards]
