"""What a pack-sft run is: its inputs by content, and the hash that follows. Cheap to import and to compute.

A cached re-run needs no more than this: no numpy, no Arrow, no Prefect.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.canonical import canonical_hash
from schemas.errors import ConfigError
from schemas.run import InputRecord
from schemas.sft import FLOW, FORMAT_VERSION, SPLITS, DatasetConfig, PackSftConfig
from tasks.inputs.files import InputFile, resolve
from tasks.inputs.fingerprint import Fingerprints
from tasks.run.layout import FINGERPRINTS, LATEST, RUNS, STAGES
from tasks.sft.chat.tokenizer_source import TokenizerSource, find_tokenizer


@dataclass(frozen=True)
class DatasetInputs:
    """A data set and its files, sorted by name, with their SHA-256."""

    dataset: DatasetConfig
    files: tuple[InputFile, ...]
    digests: tuple[str, ...]


@dataclass(frozen=True)
class Identity:
    """A run before it runs.

    Attributes:
        run_hash: 16 hex digits; equal for equal settings over equal bytes.
        tokenizer: where it lies, its digest and template.
        inputs: the files of every data set.
        seen: what each input file looked like when it was hashed.
    """

    run_hash: str
    tokenizer: TokenizerSource
    inputs: tuple[DatasetInputs, ...]
    seen: dict[str, list[int]]

    def records(self) -> list[InputRecord]:
        return [
            InputRecord(
                source=entry.dataset.name, path=file.name, bytes=file.bytes, digest=f"sha256:{digest}"
            )
            for entry in self.inputs
            for file, digest in zip(entry.files, entry.digests, strict=True)
        ]


def identify(config: PackSftConfig) -> Identity:
    """Resolve, fingerprint and hash everything `config` names.

    Raises:
        ConfigError: a path, the tokenizer or the template is missing, or an input is what runs made.
        InputError: an input cannot be read.
    """
    tokenizer = find_tokenizer(config.tokenizer)
    memo = Fingerprints(Path(config.output_dir) / STAGES / FINGERPRINTS)
    inputs = []
    for dataset in config.datasets:
        files = resolve(dataset.path)
        _refuse_own_output(dataset, files, Path(config.output_dir))
        digests = memo.digests([file.path for file in files])
        inputs.append(DatasetInputs(dataset, files, tuple(digests)))
    if Path(config.output_dir, STAGES).is_dir():
        memo.save()
    named = [
        [entry.dataset.name, [[f.name, d] for f, d in zip(entry.files, entry.digests, strict=True)]]
        for entry in inputs
    ]
    run_hash = canonical_hash(
        {
            "flow": FLOW,
            "format": FORMAT_VERSION,
            "config": config.hash_fields(),
            "inputs": named,
            "tokenizer": tokenizer_fields(tokenizer),
        }
    )
    return Identity(run_hash, tokenizer, tuple(inputs), memo.identities())


def _refuse_own_output(dataset: DatasetConfig, files: Sequence[InputFile], output_dir: Path) -> None:
    """A folder of inputs that holds the output folder would take this run's shards for chats next time."""
    root = output_dir.absolute()
    made = [root / name for name in (RUNS, STAGES, LATEST, SPLITS)]
    for file in files:
        if any(file.path.is_relative_to(folder) for folder in made):
            raise ConfigError(
                f"the input {file.name!r} lies in output_dir, among what runs make; move output_dir out of the "
                "input folder, or name the input files by a glob",
                code="input_is_output",
                where=f"datasets.{dataset.name}",
            )


def tokenizer_fields(source: TokenizerSource) -> dict[str, Any]:
    """What of a tokenizer enters hashes: its digest, and the template given beside it."""
    template = source.chat_template
    return {
        "digest": source.digest,
        "chat_template": hashlib.sha256(template.encode("utf-8", "surrogatepass")).hexdigest()
        if template
        else "",
    }
