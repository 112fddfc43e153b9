"""The identity of a pack-sft run: its inputs by content, and its hash. Cheap to import and to compute."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from schemas.sft import FLOW, FORMAT_VERSION, PUBLISHED, DatasetConfig, PackSftConfig
from tasks.inputs.files import resolve
from tasks.inputs.survey import Survey, survey_here
from tasks.run.contract import Domain
from tasks.run.identity import Identity, Source, fingerprint
from tasks.sft.chat.tokenizer_source import TokenizerSource, find_tokenizer

DOMAIN = Domain(FLOW, FORMAT_VERSION, PUBLISHED)


@dataclass(frozen=True, kw_only=True)
class DatasetSource(Source):
    """A data set and its files, sorted by name."""

    dataset: DatasetConfig


@dataclass(frozen=True, kw_only=True)
class PackIdentity(Identity[DatasetSource]):
    """See `Identity`; `tokenizer` has the tokenizer's location, digest and template."""

    tokenizer: TokenizerSource


def identify(config: PackSftConfig, survey: Survey = survey_here) -> PackIdentity:
    """Resolve, fingerprint and hash everything `config` names.

    Raises:
        ConfigError: a path, the tokenizer or the template is missing, or an input is the output of a run.
        InputError: an input cannot be read.
    """
    tokenizer = find_tokenizer(config.tokenizer)
    found = [
        DatasetSource(
            name=dataset.name,
            where=f"datasets.{dataset.name}",
            files=resolve(dataset.path),
            dataset=dataset,
        )
        for dataset in config.datasets
    ]
    sources, seen = fingerprint(found, config.output_dir, PUBLISHED, survey)
    run_hash = DOMAIN.run_hash(
        config.hash_fields(),
        [[source.name, source.named_digests()] for source in sources],
        tokenizer=tokenizer_fields(tokenizer),
    )
    return PackIdentity(run_hash=run_hash, sources=sources, seen=seen, tokenizer=tokenizer)


def tokenizer_fields(source: TokenizerSource) -> dict[str, Any]:
    """Return the parts of a tokenizer that enter hashes: its digest, and the configured template."""
    template = source.chat_template
    return {
        "digest": source.digest,
        "chat_template": hashlib.sha256(template.encode("utf-8", "surrogatepass")).hexdigest()
        if template
        else "",
    }
