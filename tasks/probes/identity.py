"""Identify a build-probe-rows run: its files by content, and its hash. Cheap to import and to compute."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from schemas.probes import FLOW, FORMAT_VERSION, PUBLISHED, BuildProbeRowsConfig
from tasks.inputs.files import InputFile, resolve
from tasks.run.contract import Domain
from tasks.run.identity import Identity, Source, fingerprint

DOMAIN = Domain(FLOW, FORMAT_VERSION, PUBLISHED)

_PATTERNS = ("*.parquet",)


def identify(config: BuildProbeRowsConfig) -> Identity[Source]:
    """Resolve, fingerprint and hash everything `config` names.

    The one source lists every input file once, by name and then by content; this order decides ties of time.

    Raises:
        ConfigError: a path is missing or contains no Parquet file, or an input is the output of a run.
        InputError: an input cannot be read.
    """
    found = Source("input", "input", tuple(_resolve(config)))
    [source], seen = fingerprint([found], config.output_dir, PUBLISHED)
    source = _in_order(source)
    run_hash = DOMAIN.run_hash(config.hash_fields(), source.named_digests())
    return Identity(run_hash=run_hash, sources=(source,), seen=seen)


def _resolve(config: BuildProbeRowsConfig) -> Iterable[InputFile]:
    """Return the files of all paths; a file that two paths lead to counts once, under its shortest name."""
    by_place: dict[Path, InputFile] = {}
    for path in config.inputs:
        for file in resolve(path, _PATTERNS):
            place = file.path.resolve()
            known = by_place.get(place)
            if known is None or (len(file.name), file.name) < (len(known.name), known.name):
                by_place[place] = file
    return by_place.values()


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
