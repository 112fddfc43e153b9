"""Find the ArrayRecord files that a path names."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from schemas.errors import ConfigError, InputError
from schemas.probes import FLOW, SHARD_SUFFIX, SPLITS
from tasks.run.find import find
from tasks.storage.listing import entries, glob

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_NUMBERED = re.compile(r"(.+)-(\d{5})-of-(\d{5})" + re.escape(SHARD_SUFFIX))


def find_shards(path: Paths, split: str) -> tuple[str, ...]:
    """Return the absolute paths of all shards that `path` names, each once.

    A list keeps its order; the files of a folder or glob are sorted.

    Args:
        path: a file, a folder, a glob, or a list of these. A folder may be a run or an output folder, whose latest
            run is resolved once, now.
        split: which shards of a folder: those named `{split}-….arrayrecord`, or all of them if no file is named
            after a split.

    Raises:
        ConfigError: `path` does not name a file or shard, or names a run of another flow or an unpublished one.
        InputError: `missing_shard`: a folder lacks a shard that the names of the others imply.
    """
    given = [path] if isinstance(path, str | os.PathLike) else list(path)
    if not given:
        raise ConfigError("the list of shards is empty", where="path")
    found: dict[str, None] = {}
    for one in given:
        found.update(dict.fromkeys(str(file) for file in _files(os.fspath(one), split)))
    return tuple(found)


def _files(path: str, split: str) -> list[Path]:
    if not path or "\0" in path:
        raise ConfigError(f"{path!r} is not a valid path", where="path")
    here = Path(path).absolute()
    if here.is_dir():
        return _in_folder(here, split)
    if here.is_file():
        return [here]
    files = [match for match in map(Path, glob(str(here))) if match.is_file()]
    if not files:
        raise ConfigError("no such file or folder, and no file matches it as a glob", where=path)
    return files


def _in_folder(folder: Path, split: str) -> list[Path]:
    # Resolve `latest` now: a run published later must not change the files of this reader.
    found = find(folder)
    if found.is_run:
        found.manifest_of(FLOW, "probe rows")
        folder = found.folder
        files = [file for file in found.outputs(ending=SHARD_SUFFIX) if file.is_file()]
    else:
        # Hidden names are files being written.
        files = [file for file in entries(folder, f"*{SHARD_SUFFIX}") if not file.name.startswith(".")]
    if any(file.name.startswith(tuple(f"{name}-" for name in SPLITS)) for file in files):
        files = [file for file in files if file.name.startswith(f"{split}-")]
    if not files:
        raise ConfigError(
            f"there is no {split}-*{SHARD_SUFFIX}; name an output folder, a run, or a folder of shards",
            where=str(folder),
        )
    _check_complete(files)
    return files


def _check_complete(files: Sequence[Path]) -> None:
    there: dict[tuple[str, int], set[int]] = {}
    for file in files:
        if match := _NUMBERED.fullmatch(file.name):
            there.setdefault((match[1], int(match[3])), set()).add(int(match[2]))
    for (stem, count), numbers in there.items():
        if missing := sorted(set(range(count)) - numbers):
            raise InputError(
                f"{len(missing)} of {count} shards are missing; the first missing one is number {missing[0]}",
                code="missing_shard",
                where=str(files[0].parent / f"{stem}-*-of-{count:05d}{SHARD_SUFFIX}"),
            )
