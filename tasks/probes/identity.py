"""What a build-probe-rows run is: its files by content, and the hash that follows. Cheap to import and to compute."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from schemas.canonical import canonical_hash
from schemas.errors import ConfigError
from schemas.probes import FLOW, FORMAT_VERSION, BuildProbeRowsConfig
from schemas.run import InputRecord
from tasks.inputs.files import InputFile, resolve
from tasks.inputs.fingerprint import Fingerprints
from tasks.run.layout import FINGERPRINTS, LATEST, RUNS, STAGES

_PATTERNS = ("*.parquet",)


@dataclass(frozen=True)
class Identity:
    """A run before it runs.

    Attributes:
        run_hash: 16 hex digits; equal for equal settings over equal bytes.
        files: every input file once, by name and then by content; this order decides ties of time.
        digests: their SHA-256.
        seen: what each looked like when it was hashed.
    """

    run_hash: str
    files: tuple[InputFile, ...]
    digests: tuple[str, ...]
    seen: dict[str, list[int]]

    def records(self) -> list[InputRecord]:
        return [
            InputRecord(source="input", path=file.name, bytes=file.bytes, digest=f"sha256:{digest}")
            for file, digest in zip(self.files, self.digests, strict=True)
        ]


def identify(config: BuildProbeRowsConfig) -> Identity:
    """Resolve, fingerprint and hash everything `config` names.

    Raises:
        ConfigError: a path is missing or holds no Parquet file, or an input is what runs made.
        InputError: an input cannot be read.
    """
    found = _resolve(config)
    memo = Fingerprints(Path(config.output_dir) / STAGES / FINGERPRINTS)
    digests = memo.digests([file.path for file in found])
    if Path(config.output_dir, STAGES).is_dir():
        memo.save()
    # By content where names are equal, so that the order in which paths are listed decides nothing.
    pairs = sorted(zip(found, digests, strict=True), key=lambda pair: (pair[0].name.encode(), pair[1]))
    files = tuple(_distinct_names(file for file, _ in pairs))
    digests = [digest for _, digest in pairs]
    named = [[file.name, digest] for file, digest in zip(files, digests, strict=True)]
    run_hash = canonical_hash(
        {"flow": FLOW, "format": FORMAT_VERSION, "config": config.hash_fields(), "inputs": named}
    )
    return Identity(run_hash, files, tuple(digests), memo.identities())


def _resolve(config: BuildProbeRowsConfig) -> list[InputFile]:
    """The files of all paths; one that two paths lead to counts once, under its shortest name."""
    by_place: dict[Path, InputFile] = {}
    for path in config.inputs:
        for file in resolve(path, _PATTERNS):
            place = file.path.resolve()
            known = by_place.get(place)
            if known is None or (len(file.name), file.name) < (len(known.name), known.name):
                by_place[place] = file
    _refuse_own_output(by_place.values(), Path(config.output_dir))
    return list(by_place.values())


def _refuse_own_output(files: Iterable[InputFile], output_dir: Path) -> None:
    """An input folder that holds the output folder would take this run's reject files for measurements."""
    root = output_dir.absolute()
    made = [root / name for name in (RUNS, STAGES, LATEST)]
    for file in files:
        if any(file.path.is_relative_to(folder) for folder in made):
            raise ConfigError(
                f"the input {file.name!r} lies in output_dir, among what runs make; move output_dir out of the "
                "input folder, or name the input files by a glob",
                code="input_is_output",
                where="input",
            )


def _distinct_names(files: Iterable[InputFile]) -> Iterable[InputFile]:
    """Files of one name, from different folders of a list, get `#2`, `#3` behind it."""
    seen: dict[str, int] = {}
    for file in files:
        times = seen[file.name] = seen.get(file.name, 0) + 1
        yield file if times == 1 else dataclasses.replace(file, name=f"{file.name}#{times}")
