"""What a count-words run is: its files by content, and the hash that follows."""

from __future__ import annotations

from contract.word_counts.schema import FLOW, FORMAT_VERSION, PUBLISHED, CountWordsConfig

from tasks.inputs.files import resolve
from tasks.inputs.survey import Survey, survey_here
from tasks.run.contract import Domain
from tasks.run.identity import Identity, Source, fingerprint

DOMAIN = Domain(FLOW, FORMAT_VERSION, PUBLISHED)


def identify(config: CountWordsConfig, survey: Survey = survey_here) -> Identity[Source]:
    """Resolve, fingerprint and hash everything `config` names."""
    found = Source("input", "input", resolve(config.input))
    [source], seen = fingerprint([found], config.output_dir, PUBLISHED, survey)
    run_hash = DOMAIN.run_hash(config.hash_fields(), source.named_digests())
    return Identity(run_hash=run_hash, sources=(source,), seen=seen)
