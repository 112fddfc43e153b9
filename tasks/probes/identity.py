"""Identify a build-probe-rows run: its files by content, and its hash. Cheap to import and to compute."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import cast

from schemas.errors import ConfigError
from schemas.probes import FLOW, FORMAT_VERSION, PUBLISHED, BuildProbeRowsConfig, MeasurementFormat
from tasks.inputs.files import InputFile, resolve
from tasks.inputs.segments import Format
from tasks.inputs.survey import Survey, survey_here
from tasks.run.contract import Domain
from tasks.run.identity import Identity, Source, fingerprint

DOMAIN = Domain(FLOW, FORMAT_VERSION, PUBLISHED)

_COMPRESSED = ("", ".gz", ".zst", ".bz2")


def _text(*endings: str) -> tuple[str, ...]:
    return tuple(ending + codec for ending in endings for codec in _COMPRESSED)


# By the ending alone, `.json` could be anything.
_AUTO = {
    MeasurementFormat.PARQUET: (".parquet",),
    MeasurementFormat.CSV: _text(".csv"),
    MeasurementFormat.NDJSON: _text(".ndjson", ".jsonl"),
}
_ENDINGS = {
    **_AUTO,
    MeasurementFormat.AUTO: tuple(ending for endings in _AUTO.values() for ending in endings),
    MeasurementFormat.NDJSON: _text(".ndjson", ".jsonl", ".json"),
    # Daily dumps of RIPE Atlas are called `ping-2026-01-31T2300.bz2`.
    MeasurementFormat.ATLAS: (*_text(".ndjson", ".jsonl", ".json"), ".bz2"),
}


def identify(config: BuildProbeRowsConfig, survey: Survey = survey_here) -> Identity[Source]:
    """Resolve, fingerprint and hash everything `config` names.

    The one source lists every input file once, by name and then by content; this order decides ties of time.

    Raises:
        ConfigError: a path is missing or contains no measurements, or `mixed_formats`: it contains files of several
            formats, or an input is the output of a run.
        InputError: an input cannot be read.
    """
    found = Source("input", "input", tuple(_resolve(config)))
    [source], seen = fingerprint([found], config.output_dir, PUBLISHED, survey)
    source = _in_order(source)
    run_hash = DOMAIN.run_hash(config.hash_fields(), source.named_digests())
    return Identity(run_hash=run_hash, sources=(source,), seen=seen)


def format_of(name: str, asked: MeasurementFormat) -> MeasurementFormat:
    """Return the format of a file that `identify` found.

    >>> format_of("a/b.jsonl.gz", MeasurementFormat.AUTO).value
    'ndjson'
    """
    if asked is not MeasurementFormat.AUTO:
        return asked
    return next(kind for kind, endings in _AUTO.items() if name.endswith(endings))


def text_format(name: str, kind: MeasurementFormat, array: bool = False) -> Format:
    """Return how the text of a file is stored.

    Args:
        array: it is one JSON array, not an object a line.

    >>> text_format("ping-2026-01-31T2300.bz2", MeasurementFormat.ATLAS)
    'jsonl.bz2'
    """
    base = "csv" if kind is MeasurementFormat.CSV else "json" if array else "jsonl"
    codec = next((codec for codec in _COMPRESSED[1:] if name.endswith(codec)), "")
    return cast(Format, base + codec)


def _resolve(config: BuildProbeRowsConfig) -> Iterable[InputFile]:
    """Return the files of all paths; a file that two paths lead to counts once, under its shortest name."""
    patterns = tuple(f"*{ending}" for ending in _ENDINGS[config.format])
    by_place: dict[Path, InputFile] = {}
    for path in config.inputs:
        for file in _of_one_format(_found(path, patterns, config.format), path, config.format):
            place = file.path.resolve()
            known = by_place.get(place)
            if known is None or (len(file.name), file.name) < (len(known.name), known.name):
                by_place[place] = file
    return by_place.values()


def _found(path: str, patterns: tuple[str, ...], asked: MeasurementFormat) -> tuple[InputFile, ...]:
    try:
        return resolve(path, patterns)
    except ConfigError as error:
        if asked is not MeasurementFormat.AUTO or error.code not in ("unsupported_file", "no_files"):
            raise
        hint = "; for .json set format to ndjson or atlas"
        raise ConfigError(error.message + hint, code=error.code, where=error.where) from None


def _of_one_format(
    files: tuple[InputFile, ...], path: str, asked: MeasurementFormat
) -> tuple[InputFile, ...]:
    """Refuse a folder with files of several formats, which may be the same measurements twice."""
    found = Counter(format_of(file.path.name, asked).value for file in files)
    if len(found) > 1:
        counted = ", ".join(f"{number} {kind}" for kind, number in sorted(found.items()))
        raise ConfigError(
            f"the files are of several formats ({counted}); set format to the one to read, or give a glob",
            code="mixed_formats",
            where=path,
        )
    return files


def _in_order(source: Source) -> Source:
    """Sort files by name, then content, so that the order in which paths are listed does not matter."""
    pairs = sorted(
        zip(source.files, source.digests, strict=True), key=lambda pair: (pair[0].name.encode(), pair[1])
    )
    files = tuple(_distinct_names(file for file, _ in pairs))
    return dataclasses.replace(source, files=files, digests=tuple(digest for _, digest in pairs))


def _distinct_names(files: Iterable[InputFile]) -> Iterable[InputFile]:
    """Append `#2`, `#3` to the names of files from different folders that have the same name."""
    seen: dict[str, int] = {}
    for file in files:
        times = seen[file.name] = seen.get(file.name, 0) + 1
        yield file if times == 1 else dataclasses.replace(file, name=f"{file.name}#{times}")
