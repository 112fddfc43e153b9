"""Packed Parquet shards behind a URI: found and read through fsspec, range by range, never copied whole."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from schemas.errors import ConfigError
from tasks.sft.shards.find import of_split
from tasks.sft.shards.parquet_reader import ParquetShard
from tasks.storage.listing import files_below, glob, is_pattern
from tasks.storage.remote import open_uri, store_at


class UriParquetShard(ParquetShard):
    """A packed Parquet shard at a URI that fsspec understands."""

    def __init__(self, path: str) -> None:
        self.path: Any = path

    @cached_property
    def _handle(self) -> Any:
        return open_uri(self.path)

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
    store, name = store_at(uri)
    found = glob(name, store) if is_pattern(name) else files_below(name, store)
    shards = [path for path in found if path.endswith(".parquet")]
    if not shards:
        raise ConfigError(
            "no .parquet files are there; other formats are read from local or mounted folders",
            code="missing_path",
            where=uri,
        )
    if not is_pattern(name):
        root = name.rstrip("/")
        shards = of_split(shards, [path.removeprefix(root).split("/") for path in shards], split, uri)
    return [store.uri(path) for path in shards]
