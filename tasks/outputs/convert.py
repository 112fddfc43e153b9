"""Convert packed shards from one format to another, a block of bins at a time.

Rows keep every value, including a mask that ends with 1, as other tools store it. A row that cannot be a bin in any
format (a mask of another length, starts that do not increase, an id that is not an int32 …) is refused by number.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from schemas.errors import ConfigError, IntegrityError
from schemas.sft import SPLIT_NAMES, StorageConfig, StorageFormat
from tasks.outputs.domains import PACKED
from tasks.outputs.finding import sort_out
from tasks.run.find import find
from tasks.sft.shards.bins import Bins
from tasks.sft.shards.find import open_shard, packed_manifest, shard_format, split_links
from tasks.sft.shards.invariants import OURS_ONLY, RawBins, check_bins
from tasks.sft.shards.shard import Shard
from tasks.sft.shards.writers import SUFFIXES, open_writer
from tasks.storage.atomic import AtomicFolder
from tasks.storage.listing import stored_bytes

# Tokens in a block, unless a single row group has more.
_BLOCK_TOKENS = 1 << 20
_DEFAULT_PACK_SIZE = 4096


@dataclass(frozen=True)
class ConvertedShard:
    """One shard before and after: paths relative to the source and the target, sizes in bytes."""

    source: str
    target: str
    bins: int
    tokens: int
    source_bytes: int
    target_bytes: int


@dataclass(frozen=True)
class Conversion:
    """The result of `convert_shards`."""

    source: str
    target: str
    format: str
    shards: tuple[ConvertedShard, ...]

    def total(self, name: str) -> int:
        """Add up one number over all shards."""
        return sum(getattr(shard, name) for shard in self.shards)

    def as_dict(self) -> dict[str, Any]:
        """Return totals and every shard, for `--json`."""
        totals = {name: self.total(name) for name in ("bins", "tokens", "source_bytes", "target_bytes")}
        return {**asdict(self), **totals, "shards": [asdict(shard) for shard in self.shards]}


def convert_shards(source: Path, target: Path, to: StorageFormat | None = None) -> Conversion:
    """Convert a shard, a folder of shards, a run or an output folder (its latest run).

    Args:
        target: for one shard a file of the format's suffix, or the folder of a memmap shard; otherwise a folder,
            which gets the names of the source folder, or `{split}/{link name}` of a run. It must not exist yet,
            and appears whole or not at all.
        to: the format; needed only if the suffix of `target` does not tell.

    Raises:
        ConfigError: `exists`, the target exists; `missing_path`, there are no shards; `not_packed`, there is
            something else; `usage`, the format is not given, or the suffix contradicts it.
        BadShardError: a source is not a readable shard.
        IntegrityError: `bad_row`, a row is not a bin.
        StorageError: the target cannot be written.
    """
    if os.path.lexists(target):
        raise ConfigError(
            "already exists and is not replaced; choose another", code="exists", where=str(target)
        )
    chosen = _format(target, to)
    named = _named_shards(source)
    is_file = target.suffix == SUFFIXES[chosen] != ""
    single = shard_format(source) is not None and (is_file or chosen is StorageFormat.MEMMAP)
    if is_file and not single:
        if len(named) > 1:
            raise ConfigError(
                f"{len(named)} shards cannot become one file; give a folder", code="usage", where=str(target)
            )
        single = True
    storage = StorageConfig(format=chosen)
    if single:
        name, path = named[0]
        shards = [_convert(path, target, storage, name, target.name)]
    else:
        shards = _convert_folder(named, target, storage)
    return Conversion(str(source), str(target), chosen.value, tuple(shards))


def _format(target: Path, to: StorageFormat | None) -> StorageFormat:
    by_suffix = {suffix: known for known, suffix in SUFFIXES.items() if suffix}
    said = by_suffix.get(target.suffix)
    if to is not None and said not in (None, to):
        raise ConfigError(f"--to {to} does not fit the suffix of {target.name!r}", code="usage")
    chosen = to or said
    if chosen is None:
        raise ConfigError(
            f"the format is not clear from {target.name!r}; add --to parquet, memmap or npy", code="usage"
        )
    return chosen


def _named_shards(source: Path) -> list[tuple[str, Path]]:
    """Return every shard with its name: relative to a folder, `{split}/{link}` in a run."""
    found = find(source)
    if found.is_run:
        manifest = packed_manifest(found)
        return [
            (f"{split}/{link}", found.at(shard))
            for split in SPLIT_NAMES
            for link, shard in split_links(manifest, split)
        ]
    pile = sort_out(found)
    if pile.domain is not PACKED:
        raise ConfigError(
            f"these are {pile.certain().kind}; only {PACKED.kind} can be converted",
            code="not_packed",
            where=str(source),
        )
    shards = sorted([*pile.files, *(file.path for file in pile.unclear)], key=lambda shard: shard.parts)
    if pile.is_single:
        return [(source.name, shard) for shard in shards]
    return [(shard.relative_to(source).as_posix(), shard) for shard in shards]


def _convert_folder(
    named: list[tuple[str, Path]], target: Path, storage: StorageConfig
) -> list[ConvertedShard]:
    targets: dict[str, str] = {}
    for name, path in named:
        found = shard_format(path)
        stem = name.removesuffix(SUFFIXES[found]) if found else name
        other = targets.setdefault(stem + SUFFIXES[storage.format], name)
        if other != name:
            raise ConfigError(f"{other} and {name} would get the same name", code="usage", where=str(target))
    folder = AtomicFolder(target)
    try:
        shards = [
            _convert(path, folder.place(to), storage, name, to)
            for to, (name, path) in zip(targets, named, strict=True)
        ]
        folder.commit()
    except BaseException:
        folder.discard()
        raise
    return shards


def _convert(source: Path, target: Path, storage: StorageConfig, name: str, to: str) -> ConvertedShard:
    with open_shard(source) as shard:
        storage = storage.bounded(shard.metadata.pack_size or _DEFAULT_PACK_SIZE)
        width = shard.longest_bin() if storage.format is StorageFormat.MEMMAP else 0
        tokens = 0
        with open_writer(target, storage, shard.metadata, shard.num_bins, width) as writer:
            for bins in _checked_blocks(shard, storage.row_group_size):
                writer.write_block(bins)
                tokens += len(bins.input_ids)
            writer.finalize()
        return ConvertedShard(name, to, shard.num_bins, tokens, stored_bytes(source), stored_bytes(target))


def _checked_blocks(shard: Shard, row_group_size: int) -> Iterator[Bins]:
    metadata = shard.metadata
    # Take whole row groups, so that the block size does not affect the Parquet file.
    per_group = (metadata.pack_size or _DEFAULT_PACK_SIZE) * row_group_size
    rows = max(1, _BLOCK_TOKENS // per_group) * row_group_size
    first = 0
    for raw in shard.blocks(rows=rows):
        for rule, bad, detail in check_bins(raw, metadata.limits()):
            if len(bad) and rule not in OURS_ONLY:
                raise _bad_row(shard.path, first + int(bad[0]), f"{rule}: {detail}")
        large = np.flatnonzero(raw.ids > np.iinfo(np.int32).max)
        if len(large):
            row = int(np.searchsorted(raw.ids_offsets, large[0], side="right")) - 1
            raise _bad_row(shard.path, first + row, f"the id {raw.ids[large[0]]} is not an int32")
        yield _bins(raw)
        first += raw.num_bins


def _bad_row(path: Path, row: int, detail: str) -> IntegrityError:
    message = f"{detail}; nothing was written; `validate` lists every fault"
    return IntegrityError(message, code="bad_row", where=f"{path}:{row}")


def _bins(raw: RawBins) -> Bins:
    return Bins(
        raw.ids.astype(np.int32, copy=False),
        raw.mask.astype(np.uint8, copy=False),
        raw.ids_offsets,
        raw.starts.astype(np.int32, copy=False),
        raw.starts_offsets,
    )
