"""The work of a count-words run: one stage, a part each."""

from __future__ import annotations

from contract.word_counts.count import CountJob
from contract.word_counts.identity import DOMAIN
from contract.word_counts.schema import CountWordsConfig

from tasks.inputs.segments import parts_of
from tasks.run.contract import absolute_root
from tasks.run.identity import Identity, Source

# Small, so that a few rows give several parts.
_GROUP_BYTES = 2_000


def count_jobs(config: CountWordsConfig, identity: Identity[Source]) -> list[CountJob]:
    """One job for each part; its key holds the digests of the files that it reads, and nothing else."""
    [source] = identity.sources
    digests = dict(zip((file.name for file in source.files), source.digests, strict=True))
    return [
        CountJob(
            output_dir=absolute_root(config),
            stage=DOMAIN.stage_key(
                "count", segments=[[s.name, digests[s.name], s.start, s.stop] for s in segments]
            ),
            segments=segments,
            label=segments[0].name,
            seen=identity.seen_of(segment.path for segment in segments),
        )
        for segments in parts_of(source.files, source.cuts, _GROUP_BYTES)
    ]
