"""What lies at a path, and the files it is made of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pyarrow as pa

from schemas import corpus, probes, sft, tokenizer
from schemas.errors import ConfigError, InputError
from tasks.run.history import read_manifest
from tasks.run.layout import LATEST, MANIFEST, MARKER
from tasks.sft.shards.find import find_shards, shard_format
from tasks.storage.listing import walk
from tasks.storage.parquet import parquet_columns

REJECTS = "rejects"


class Kind(StrEnum):
    """What Gristmill makes."""

    PACKED = "packed bins"
    PROBES = "probe rows"
    DOCUMENTS = "sampled documents"
    TOKENIZER = "tokenizer"
    REJECTS = "rejected rows"


_BY_FLOW = {
    sft.FLOW: Kind.PACKED,
    corpus.FLOW: Kind.DOCUMENTS,
    tokenizer.FLOW: Kind.TOKENIZER,
    probes.FLOW: Kind.PROBES,
}
# A Parquet file is told by the columns it must have.
_BY_COLUMNS = {
    Kind.PACKED: {"input_ids", "loss_mask", "seq_start_id"},
    Kind.REJECTS: {"source_file", "row", "reason"},
    Kind.DOCUMENTS: set(corpus.OWN_COLUMNS),
}


@dataclass(frozen=True)
class Outputs:
    """An output to look at.

    Attributes:
        path: what the user named.
        files: shards in order; of a tokenizer, its folder.
        rejects: files of rejected rows.
        run_dir: the run's folder, if it is a run.
    """

    path: str
    kind: Kind
    files: tuple[Path, ...]
    rejects: tuple[Path, ...] = ()
    run_dir: Path | None = None


def find_outputs(path: Path) -> Outputs:
    """What lies at `path`: a run, an output folder (its latest run), a folder of shards, or a file.

    Raises:
        ConfigError: `missing_path`; `unknown_output`, when it is nothing that Gristmill makes.
        IntegrityError: a run's manifest is damaged.
        InputError: a file cannot be read.
    """
    if not path.exists():
        raise ConfigError("nothing is there", code="missing_path", where=str(path))
    if path.is_file():
        return Outputs(str(path), _kind_of(path), (path,))
    if shard_format(path) is not None:
        return Outputs(str(path), Kind.PACKED, (path,))
    for folder in (path, path / LATEST):
        if (folder / MANIFEST).is_file():
            return _of_run(str(path), folder.resolve())
    if (path / MARKER).is_file():
        raise ConfigError(
            "this output folder has no published run yet; run its flow to the end",
            code="missing_path",
            where=str(path),
        )
    return _of_folder(path)


def _of_run(path: str, folder: Path) -> Outputs:
    run = read_manifest(folder)
    kind = _BY_FLOW.get(run.flow)
    if kind is None:
        known = ", ".join(sorted(_BY_FLOW))
        raise ConfigError(
            f"unknown flow {run.flow!r}; known: {known}", code="unknown_output", where=str(folder / MANIFEST)
        )
    names = [record.path for record in run.outputs]
    rejects = tuple(folder / name for name in names if name.startswith(f"{REJECTS}/"))
    if kind is Kind.TOKENIZER:
        return Outputs(path, kind, (folder / tokenizer.TOKENIZER,), rejects, folder)
    if kind is Kind.PACKED:
        return Outputs(path, kind, tuple(find_shards(folder)), rejects, folder)
    suffix = probes.SHARD_SUFFIX if kind is Kind.PROBES else ".parquet"
    files = tuple(folder / name for name in names if name.endswith(suffix) and folder / name not in rejects)
    return Outputs(path, kind, files, rejects, folder)


def _of_folder(path: Path) -> Outputs:
    if (path / "tokenizer.json").is_file():
        return Outputs(str(path), Kind.TOKENIZER, (path,))
    records = walk(path, f"*{probes.SHARD_SUFFIX}")
    if records:
        return Outputs(str(path), Kind.PROBES, tuple(records))
    tables = walk(path, "*.parquet")
    kinds = {file: _kind_of(file) for file in tables}
    rejects = tuple(file for file, kind in kinds.items() if kind is Kind.REJECTS)
    rest = {kind for kind in kinds.values() if kind is not Kind.REJECTS}
    if len(rest) > 1:
        found = " and ".join(sorted(rest))
        raise ConfigError(
            f"the folder holds {found}; name one of them", code="unknown_output", where=str(path)
        )
    if rest and rest != {Kind.PACKED}:
        files = tuple(file for file in tables if file not in rejects)
        return Outputs(str(path), rest.pop(), files, rejects)
    if rejects and not rest:
        return Outputs(str(path), Kind.REJECTS, rejects)
    return Outputs(str(path), Kind.PACKED, tuple(find_shards(path)), rejects)


def _kind_of(path: Path) -> Kind:
    """What one file is."""
    if path.suffix == probes.SHARD_SUFFIX:
        return Kind.PROBES
    if path.name == "tokenizer.json":
        return Kind.TOKENIZER
    if path.suffix == ".npy":
        return Kind.PACKED
    try:
        columns = set(parquet_columns(path))
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"not a readable Parquet file: {error}", code="bad_parquet", where=str(path)
        ) from error
    for kind, needed in _BY_COLUMNS.items():
        if needed <= columns:
            return kind
    raise ConfigError(
        f"the columns {', '.join(sorted(columns))} are of nothing that gristmill makes",
        code="unknown_output",
        where=str(path),
    )
