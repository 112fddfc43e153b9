"""Find what is at a path, by the table of domains: its kind, and its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.errors import ConfigError, GristmillError, InputError
from tasks.outputs.domains import DOMAINS, PACKED, PARQUET, REJECTED, Domain
from tasks.outputs.found import Outputs
from tasks.run.find import Found, Kind, files_below, find
from tasks.run.layout import MANIFEST
from tasks.storage.parquet import PARQUET_ERRORS, parquet_columns


@dataclass(frozen=True)
class Unclear:
    """A file whose kind is not certain.

    Attributes:
        domain: the closest domain, if any.
        error: why it does not belong to any domain.
    """

    path: Path
    domain: Domain | None
    error: GristmillError


@dataclass(frozen=True)
class Pile:
    """A set of loose files.

    Attributes:
        domain: their domain, apart from rejects; `None` if unknown.
        files: those of the domain; `rejects` those of rejected rows, unless there are no others.
        unclear: those whose kind is not certain.
        is_single: whether the user gave one file, or a folder that is one shard.
    """

    domain: Domain | None
    files: tuple[Path, ...]
    rejects: tuple[Path, ...]
    unclear: tuple[Unclear, ...]
    is_single: bool

    def certain(self) -> Domain:
        """Return the domain.

        Raises:
            GristmillError: the error of the first file whose kind is not certain.
        """
        if self.domain is None or self.unclear:
            raise self.unclear[0].error
        return self.domain


def find_outputs(path: Path) -> tuple[Domain, Outputs]:
    """Find what is at `path`: a run, an output folder (its latest run), a folder of files of one kind, or a file.

    Raises:
        ConfigError: `missing_path`; `unknown_output`: a file is not a Gristmill output; `mixed_outputs`: a
            folder contains several kinds; `run_below`: a folder contains runs.
        IntegrityError: a run's manifest is missing or damaged.
        InputError: a file cannot be read.
    """
    found = find(path)
    if found.is_run:
        domain = domain_of(found)
        rejects = tuple(REJECTED.run_files(found))
        return domain, Outputs(str(path), domain.kind, tuple(domain.run_files(found)), rejects, found)
    pile = sort_out(found)
    domain = pile.certain()
    return domain, Outputs(str(path), domain.kind, pile.files, pile.rejects)


def domain_of(run: Found[Any]) -> Domain:
    """Return the domain of a run.

    Raises:
        ConfigError: `unknown_output`: its flow is unknown.
        IntegrityError: its manifest is missing or damaged.
    """
    flow = run.manifest.flow
    for domain in DOMAINS:
        if domain.flow == flow:
            return domain
    known = ", ".join(sorted(domain.flow for domain in DOMAINS if domain.flow))
    raise ConfigError(
        f"unknown flow {flow!r}; known: {known}", code="unknown_output", where=str(run.at(MANIFEST))
    )


def sort_out(found: Found[Path]) -> Pile:
    """Sort the files at a path that is not a run by kind.

    Raises:
        ConfigError: `missing_path`: there are none; `mixed_outputs`, `run_below`; `unknown_output`: one file that is
            not a Parquet file nor of any other known kind.
    """
    path = found.named
    is_single = found.kind is Kind.FILE or _by_name(path) is not None
    paths = [path] if is_single else list(files_below(path, lambda folder: _by_name(folder) is not None))
    by_domain: dict[str, list[Path]] = {}
    unclear: list[Unclear] = []
    for file in paths:
        domain: Domain | Unclear | None = _by_name(file)
        if domain is None and (is_single or file.suffix == PARQUET):
            domain = _by_columns(file)
        if isinstance(domain, Unclear):
            unclear.append(domain)
        elif domain is not None:
            by_domain.setdefault(domain.kind, []).append(file)
    return _pile(path, by_domain, unclear, is_single)


def _pile(path: Path, files: dict[str, list[Path]], unclear: list[Unclear], is_single: bool) -> Pile:
    rejects = files.pop(REJECTED.kind, [])
    if len(files) > 1:
        raise ConfigError(
            f"this folder holds {' and '.join(sorted(files))}; name the files or the folder of one kind",
            code="mixed_outputs",
            where=str(path),
        )
    known = next((domain for domain in DOMAINS if domain.kind in files), None)
    if known is None and not unclear:
        if not rejects:
            kinds = ", ".join(domain.kind for domain in DOMAINS)
            raise ConfigError(
                f"this folder holds neither a run ({MANIFEST}) nor anything that gristmill makes or reads ({kinds})",
                code="missing_path",
                where=str(path),
            )
        return Pile(REJECTED, tuple(rejects), (), (), is_single)
    if known is None:
        guesses = {file.domain.kind: file.domain for file in unclear if file.domain is not None}
        known = next(iter(guesses.values())) if len(guesses) == 1 else None
    shards = tuple(files[known.kind]) if known is not None and known.kind in files else ()
    return Pile(known, shards, tuple(rejects), tuple(unclear), is_single)


def _by_name(path: Path) -> Domain | None:
    return next((domain for domain in DOMAINS if domain.is_file(path)), None)


def _by_columns(path: Path) -> Domain | Unclear:
    try:
        columns = set(parquet_columns(path))
    except PARQUET_ERRORS as error:
        if path.suffix != PARQUET:
            kinds = ", ".join(domain.kind for domain in DOMAINS)
            raise ConfigError(
                f"gristmill neither makes nor reads files like this ({kinds})",
                code="unknown_output",
                where=str(path),
            ) from None
        unreadable = InputError(f"not a readable Parquet file: {error}", code="bad_parquet", where=str(path))
        return Unclear(path, PACKED, unreadable)
    tables = [domain for domain in DOMAINS if domain.columns]
    for domain in tables:
        if domain.columns <= columns:
            return domain
    closest = max(tables, key=lambda domain: len(domain.columns & columns))
    expected = "; ".join(f"{domain.kind} have {', '.join(sorted(domain.columns))}" for domain in tables)
    unknown = ConfigError(
        f"the columns {', '.join(sorted(columns))} do not match anything that gristmill makes: {expected}",
        code="unknown_output",
        where=str(path),
    )
    return Unclear(path, closest if closest.columns & columns else None, unknown)
