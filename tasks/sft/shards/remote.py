"""Find packed Parquet shards behind a URI."""

from __future__ import annotations

from schemas.errors import ConfigError
from tasks.run.find import Kind, find_uri, names_below
from tasks.sft.shards.find import of_split, run_shards
from tasks.storage.listing import glob, is_pattern
from tasks.storage.remote import store_at


def find_uri_shards(uri: str, split: str | None = None) -> list[str]:
    """Find the Parquet shards at a URI, in order: a file, a folder with shards anywhere below, a glob, a run.

    Args:
        split: the split of a run or an output folder, or of a folder with subfolders named after splits.

    Raises:
        ConfigError: `missing_path`, there are none; `unsupported_uri`, fsspec has no such protocol; otherwise as
            `tasks.sft.shards.find.find_shards`.
        InputError: the URI cannot be listed.
    """
    shards, folder = _all(uri, split)
    return shards if folder is None else of_split(shards, _below(shards, folder), split, uri)


def all_uri_shards(uri: str) -> list[str]:
    """Find the Parquet shards of all splits at a URI, in order. Errors as `find_uri_shards`."""
    return _all(uri, None)[0]


def _all(uri: str, split: str | None) -> tuple[list[str], str | None]:
    """Return the shards and, if it is a folder, the folder that has them; a run has one split's if that is given."""
    if is_pattern(uri):
        store, pattern = store_at(uri)
        return only_parquet([store.uri(path) for path in glob(pattern, store)], uri), None
    found = find_uri(uri)
    if found.kind is Kind.FILE:
        return only_parquet([uri], uri), None
    if found.is_run:
        return only_parquet(run_shards(found, split), uri), found.folder
    return only_parquet([found.at(name) for name in names_below(uri)], uri), found.folder


def _below(shards: list[str], folder: str) -> list[list[str]]:
    return [shard.removeprefix(folder).split("/") for shard in shards]


def only_parquet(uris: list[str], where: str) -> list[str]:
    """Return the Parquet files of some shards.

    Raises:
        ConfigError: `missing_path`: there are none, as only they can be read behind a URI.
    """
    shards = [uri for uri in uris if uri.endswith(".parquet")]
    if not shards:
        raise ConfigError(
            "no .parquet files found; other formats can only be read from local or mounted folders",
            code="missing_path",
            where=where,
        )
    return shards
