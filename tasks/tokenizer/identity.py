"""What a train-tokenizer run is: its sample by content, and the hash that follows. Cheap to import."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from schemas.canonical import canonical_hash
from schemas.errors import ConfigError
from schemas.run import InputRecord
from schemas.tokenizer import FLOW, FORMAT_VERSION, TrainTokenizerConfig
from tasks.inputs.files import InputFile, files_below
from tasks.inputs.fingerprint import Fingerprints
from tasks.inputs.texts import template_source
from tasks.run.layout import FINGERPRINTS, LATEST, MANIFEST, STAGES

_SHARDS = ("train-*.parquet",)
_ANY = ("*.parquet",)


@dataclass(frozen=True)
class Identity:
    """A run before it runs; see `tasks.sft.identity.Identity`.

    Attributes:
        stage: hash of what the trained tokenizer depends on.
        chat_template: source of the template.
    """

    run_hash: str
    stage: str
    chat_template: str
    files: tuple[InputFile, ...]
    digests: tuple[str, ...]
    seen: dict[str, list[int]]

    def records(self) -> list[InputRecord]:
        return [
            InputRecord(source="sample", path=file.name, bytes=file.bytes, digest=f"sha256:{digest}")
            for file, digest in zip(self.files, self.digests, strict=True)
        ]


def identify(config: TrainTokenizerConfig) -> Identity:
    """Find the sample's shards, fingerprint them, hash everything that decides the tokenizer.

    Raises:
        ConfigError: there is no sample, or no template file.
        InputError: a shard cannot be read.
    """
    template = template_source(config.chat_template, "chat_template")
    files = _shards(Path(config.sample).expanduser())
    memo = Fingerprints(Path(config.output_dir) / STAGES / FINGERPRINTS)
    digests = tuple(memo.digests([file.path for file in files]))
    if Path(config.output_dir, STAGES).is_dir():
        memo.save()
    fields = {
        "flow": FLOW,
        "format": FORMAT_VERSION,
        "config": config.hash_fields(),
        "template": hashlib.sha256(template.encode("utf-8", "surrogatepass")).hexdigest(),
        # In order, without names: the tokenizer depends on the texts and their order alone.
        "inputs": digests,
    }
    run_hash = canonical_hash(fields)
    return Identity(
        run_hash, canonical_hash({"step": "train", **fields}), template, files, digests, memo.identities()
    )


def _shards(sample: Path) -> tuple[InputFile, ...]:
    for folder in (sample, sample / LATEST):
        if (folder / MANIFEST).is_file():
            # Resolved once: a newer run must not take over half-way.
            return files_below(folder.resolve(), "*", _SHARDS)
    if not sample.is_dir():
        raise ConfigError(
            "no such folder; give a run or output folder of sample-corpus",
            code="missing_path",
            where=str(sample),
        )
    return files_below(sample, "**/*", _ANY)
