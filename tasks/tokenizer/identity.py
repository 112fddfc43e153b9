"""Identify a train-tokenizer run: its sample by content, and its hash. Cheap to import."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from schemas.corpus import FLOW as SAMPLE_FLOW
from schemas.errors import ConfigError, InputError
from schemas.tokenizer import CHAT_TEMPLATE, FLOW, FORMAT_VERSION, PUBLISHED, TrainTokenizerConfig
from tasks.inputs.files import InputFile, files_below, local_input
from tasks.inputs.survey import Survey, survey_here
from tasks.inputs.texts import template_source
from tasks.inputs.tokenizers import LocatedTokenizer, locate_tokenizer
from tasks.run.contract import Domain
from tasks.run.find import Found, find, refuse_runs_below
from tasks.run.identity import Identity, Source, fingerprint
from tasks.tokenizer.loading import TOKENIZER_FILE

DOMAIN = Domain(FLOW, FORMAT_VERSION, PUBLISHED)

_SHARDS = ("train-*.parquet",)
_ANY = ("*.parquet",)
# Another tokenizer is trained from, or measured, by its pipeline, which only this file has.
_ONE_OF = (TOKENIZER_FILE,)


@dataclass(frozen=True, kw_only=True)
class TrainIdentity(Identity[Source]):
    """Identify a run; see `Identity`.

    Attributes:
        stage: key of the stage that trains; `compare_stage`: of the one that measures the compared tokenizer.
        chat_template: source of the template; empty for that of the base.
        base, compared: the other tokenizers, where the configuration names them.
    """

    stage: str
    compare_stage: str
    chat_template: str
    base: LocatedTokenizer | None
    compared: LocatedTokenizer | None


def identify(config: TrainTokenizerConfig, survey: Survey = survey_here) -> TrainIdentity:
    """Find the sample's shards, fingerprint them, and hash everything that decides the tokenizer.

    Raises:
        ConfigError: the sample does not exist, is not published, belongs to another flow or is an output of this
            folder's runs; or the template file, the base or the compared tokenizer does not exist.
        InputError: a shard is missing or cannot be read.
    """
    template = template_source(config.chat_template, "chat_template")
    base = compared = None
    if config.base is not None:
        base = locate_tokenizer(config.base, config.base_revision, "base", "base_revision", _ONE_OF)
    else:
        template = template or CHAT_TEMPLATE
    if config.compare_with is not None:
        compared = locate_tokenizer(
            config.compare_with, config.compare_revision, "compare_with", "compare_revision", _ONE_OF
        )
    found = _sample(local_input(config.sample))
    files = _shards(found)
    sources, seen = fingerprint([Source("sample", "sample", files)], config.output_dir, PUBLISHED, survey)
    if not found.is_run:
        # After `fingerprint`, whose error for the run's own output says more.
        refuse_runs_below(found.named, [file.path for file in files])
    fields = config.hash_fields()
    # In order, without names: the tokenizer depends on the texts and their order alone.
    digests = sources[0].digests
    content = {"template": hashlib.sha256(template.encode("utf-8", "surrogatepass")).hexdigest()}
    if base is not None:
        content["base"] = base.digest
    measured = {} if compared is None else {"compared": compared.digest}
    return TrainIdentity(
        run_hash=DOMAIN.run_hash(fields, digests, **content, **measured),
        sources=sources,
        seen=seen,
        stage=DOMAIN.run_stage_key("train", fields, digests, **content),
        compare_stage=DOMAIN.run_stage_key(
            "compare", config.hash_fields(["seed", "held_out"]), digests, **measured
        ),
        chat_template=template,
        base=base,
        compared=compared,
    )


def _sample(path: Path) -> Found[Path]:
    if not path.is_dir():
        raise ConfigError(
            "no such folder; name a run or output folder of sample-corpus",
            code="missing_path",
            where=str(path),
        )
    # Resolve `latest` once: a run published meanwhile must not replace the sample half-way.
    found = find(path)
    found.refuse_unpublished()
    return found


def _shards(found: Found[Path]) -> tuple[InputFile, ...]:
    if not found.is_run:
        return files_below(found.folder, "**/*", _ANY)
    found.manifest_of(SAMPLE_FLOW, "sample")
    files = files_below(found.folder, "*", _SHARDS)
    there = {file.path for file in files}
    for shard in found.outputs("train-", ".parquet"):
        if shard not in there:
            raise InputError(
                "this shard of the sample is missing; run sample-corpus again to restore it",
                code="missing_shard",
                where=str(shard),
            )
    return files
