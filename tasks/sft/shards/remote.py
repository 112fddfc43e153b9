"""Find and read packed Parquet shards behind a URI through fsspec, range by range, without copying whole files."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from schemas.errors import ConfigError
from tasks.run.find import Kind, find_uri, names_below
from tasks.sft.shards.find import of_split, run_shards
from tasks.sft.shards.parquet_reader import ParquetShard
from tasks.storage.listing import glob, is_pattern
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
        """Close the remote file; the next access opens it again."""
        handle = vars(self).get("_handle")
        super().close()
        if handle is not None:
            handle.close()


def find_uri_shards(uri: str, split: str | None = None) -> list[str]:
    """Find the Parquet shards at a URI, in order: a file, a folder with shards anywhere below, a glob, a run.

    Args:
        split: the split of a run or an output folder, or of a folder with subfolders named after splits.

    Raises:
        ConfigError: `missing_path`, there are none; `unsupported_uri`, fsspec has no such protocol; otherwise as
            `tasks.sft.shards.find.find_shards`.
        InputError: the URI cannot be listed.
    """
    if is_pattern(uri):
        store, pattern = store_at(uri)
        return _parquet([store.uri(path) for path in glob(pattern, store)], uri)
    found = find_uri(uri)
    if found.kind is Kind.FILE:
        return _parquet([uri], uri)
    if found.is_run:
        shards = _parquet(run_shards(found, split), uri)
    else:
        shards = _parquet([found.at(name) for name in names_below(uri)], uri)
    below = [shard.removeprefix(found.folder).split("/") for shard in shards]
    return of_split(shards, below, split, uri)


def _parquet(uris: list[str], where: str) -> list[str]:
    shards = [uri for uri in uris if uri.endswith(".parquet")]
    if not shards:
        raise ConfigError(
            "no .parquet files found; other formats can only be read from local or mounted folders",
            code="missing_path",
            where=where,
        )
    return shards
