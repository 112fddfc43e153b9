"""Packed Parquet shards behind a URI: found and read through fsspec, range by range, never copied whole."""

from __future__ import annotations

import glob
from functools import cached_property
from typing import Any

from schemas.errors import ConfigError, InputError
from tasks.sft.shards.find import of_split
from tasks.sft.shards.parquet_reader import ParquetShard


class UriParquetShard(ParquetShard):
    """A packed Parquet shard at a URI that fsspec understands."""

    def __init__(self, path: str) -> None:
        self.path: Any = path

    @cached_property
    def _handle(self) -> Any:
        system, name = _file_system(self.path)
        return system.open(name, "rb")

    def _source(self) -> Any:
        return self._handle

    def close(self) -> None:
        handle = vars(self).get("_handle")
        super().close()
        if handle is not None:
            handle.close()


def find_uri_shards(uri: str, split: str | None = None) -> list[str]:
    """The Parquet shards at a URI, in order: a file, a folder with shards anywhere below, or a glob.

    Args:
        split: of a folder with folders named for splits.

    Raises:
        ConfigError: `missing_path`, there are none; `unsupported_uri`, fsspec has no such protocol.
        InputError: it cannot be listed.
    """
    system, name = _file_system(uri)
    try:
        found = (
            system.glob(name)
            if glob.has_magic(name)
            else [name]
            if system.isfile(name)
            else system.find(name)
        )
    except OSError as error:
        raise InputError(f"cannot be listed: {error}", code="unreadable", where=uri) from error
    shards = sorted(path for path in found if path.endswith(".parquet"))
    if not shards:
        raise ConfigError(
            "no .parquet files are there; other formats are read from local or mounted folders",
            code="missing_path",
            where=uri,
        )
    if not glob.has_magic(name):
        root = name.rstrip("/")
        shards = of_split(shards, [path.removeprefix(root).split("/") for path in shards], split, uri)
    return [str(system.unstrip_protocol(path)) for path in shards]


def _file_system(uri: str) -> tuple[Any, str]:
    import fsspec

    try:
        system, name = fsspec.core.url_to_fs(uri)
    except (ValueError, ImportError) as error:
        raise ConfigError(f"fsspec cannot open this: {error}", code="unsupported_uri", where=uri) from error
    return system, str(name)
