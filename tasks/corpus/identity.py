"""What a sample-corpus run is: its files by content, and the hash that follows. Cheap to import and to compute."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from schemas.canonical import canonical_hash
from schemas.corpus import FLOW, FORMAT_VERSION, CorpusDatasetConfig, OnError, SampleCorpusConfig
from schemas.errors import ConfigError
from schemas.run import InputRecord
from tasks.inputs.files import InputFile, files_below
from tasks.inputs.fingerprint import Fingerprints
from tasks.run.layout import FINGERPRINTS, STAGES

_PATTERNS = ("*.parquet",)
_NAMED = 20


@dataclass(frozen=True)
class BucketInputs:
    """One bucket and its files, sorted by relative path, with their SHA-256.

    Attributes:
        key: the data set's key in the configuration.
        bucket: the bucket's folder name.
        count: documents wanted.
        missing: why there are no files, when the folder is missing and `on_error` is skip.
    """

    key: str
    dataset: CorpusDatasetConfig
    bucket: str
    count: int
    files: tuple[InputFile, ...]
    digests: tuple[str, ...]
    missing: str = ""


@dataclass(frozen=True)
class Identity:
    """A run before it runs; see `tasks.sft.identity.Identity`."""

    run_hash: str
    buckets: tuple[BucketInputs, ...]
    seen: dict[str, list[int]]

    def records(self) -> list[InputRecord]:
        return [
            InputRecord(
                source=f"{entry.key}/{entry.bucket}",
                path=file.name,
                bytes=file.bytes,
                digest=f"sha256:{digest}",
            )
            for entry in self.buckets
            for file, digest in zip(entry.files, entry.digests, strict=True)
        ]


def identify(config: SampleCorpusConfig) -> Identity:
    """Resolve, fingerprint and hash everything `config` names.

    Raises:
        ConfigError: bucket folders that are missing or hold no Parquet file, all of them named.
        InputError: an input cannot be read.
    """
    found = _find_buckets(config)
    memo = Fingerprints(Path(config.output_dir) / STAGES / FINGERPRINTS)
    digests = iter(memo.digests([file.path for entry in found for file in entry.files]))
    buckets = tuple(
        BucketInputs(
            entry.key,
            entry.dataset,
            entry.bucket,
            entry.count,
            entry.files,
            tuple(next(digests) for _ in entry.files),
            entry.missing,
        )
        for entry in found
    )
    if Path(config.output_dir, STAGES).is_dir():
        memo.save()
    fields = config.hash_fields()
    # In a list, because the order of data sets and buckets is the order of the output.
    fields["datasets"] = [
        [key, {**dataset.hash_fields(["name", "glob", "keep_columns"]), "text": dataset.text}]
        for key, dataset in config.datasets.items()
    ]
    inputs = [
        [b.key, b.bucket, b.count, b.missing, [[f.name, d] for f, d in zip(b.files, b.digests, strict=True)]]
        for b in buckets
    ]
    run_hash = canonical_hash({"flow": FLOW, "format": FORMAT_VERSION, "config": fields, "inputs": inputs})
    return Identity(run_hash, buckets, memo.identities())


def _find_buckets(config: SampleCorpusConfig) -> list[BucketInputs]:
    found: list[BucketInputs] = []
    faults: list[str] = []
    for key, dataset in config.datasets.items():
        for bucket, count in dataset.counts.items():
            files: tuple[InputFile, ...] = ()
            missing = ""
            try:
                files = files_below(Path(dataset.source).expanduser() / bucket, dataset.glob, _PATTERNS)
            except ConfigError as error:
                missing = f"{error.where}: {error.message}"
                faults.append(missing)
            found.append(BucketInputs(key, dataset, bucket, count, files, (), missing))
    if faults and config.on_error is OnError.FAIL:
        listed = "; ".join(faults[:_NAMED])
        raise ConfigError(
            f"{len(faults)} bucket folders cannot be sampled: {listed}",
            code="missing_bucket",
            where="datasets",
        )
    return found
