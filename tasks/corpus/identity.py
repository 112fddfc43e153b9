"""Identify a sample-corpus run: its files by content, and its hash. Cheap to import and to compute."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.corpus import FLOW, FORMAT_VERSION, PUBLISHED, CorpusDatasetConfig, OnError, SampleCorpusConfig
from schemas.errors import ConfigError
from tasks.inputs.files import InputFile, files_below, local_input
from tasks.inputs.survey import Survey, survey_here
from tasks.run.contract import Domain
from tasks.run.identity import Identity, Source, fingerprint

DOMAIN = Domain(FLOW, FORMAT_VERSION, PUBLISHED)

_PATTERNS = ("*.parquet",)
_NAMED = 20


@dataclass(frozen=True, kw_only=True)
class BucketSource(Source):
    """Describe one bucket and its files, sorted by relative path; its name is `{key}/{bucket}`.

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
    missing: str = ""


def identify(config: SampleCorpusConfig, survey: Survey = survey_here) -> Identity[BucketSource]:
    """Resolve, fingerprint and hash everything `config` names.

    Raises:
        ConfigError: bucket folders are missing or contain no Parquet file (the message names all of them), or an
            input is the output of a run.
        InputError: an input cannot be read.
    """
    buckets, seen = fingerprint(_find_buckets(config), config.output_dir, PUBLISHED, survey)
    fields = config.hash_fields()
    # In a list, because the order of data sets and buckets is the order of the output.
    fields["datasets"] = [
        [key, {**dataset.hash_fields(["name", "glob", "keep_columns", "where"]), "text": dataset.text}]
        for key, dataset in config.datasets.items()
    ]
    inputs = [[b.key, b.bucket, b.count, b.missing, b.named_digests()] for b in buckets]
    return Identity(run_hash=DOMAIN.run_hash(fields, inputs), sources=buckets, seen=seen)


def _find_buckets(config: SampleCorpusConfig) -> list[BucketSource]:
    found: list[BucketSource] = []
    faults: list[str] = []
    for key, dataset in config.datasets.items():
        for bucket, count in dataset.counts.items():
            files: tuple[InputFile, ...] = ()
            missing = ""
            root = local_input(dataset.source)
            try:
                files = files_below(root / bucket, dataset.glob, _PATTERNS)
            except ConfigError as error:
                missing = f"{error.where}: {error.message}"
                faults.append(missing)
            found.append(
                BucketSource(
                    name=f"{key}/{bucket}",
                    where=f"datasets.{key}.source",
                    files=files,
                    key=key,
                    dataset=dataset,
                    bucket=bucket,
                    count=count,
                    missing=missing,
                )
            )
    if faults and config.on_error is OnError.FAIL:
        listed = "; ".join(faults[:_NAMED])
        raise ConfigError(
            f"{len(faults)} bucket folders cannot be sampled: {listed}",
            code="missing_bucket",
            where="datasets",
        )
    return found
