"""Cut each data set's splits into the positions of their shards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from schemas.run import Receipt
from schemas.sft import SplitsConfig
from tasks.run.contract import Job
from tasks.sft.order.cuts import cut_shards
from tasks.sft.order.spool import open_spools
from tasks.spool.reader import SpoolReader
from tasks.storage.atomic import write_file
from tasks.storage.reading import read_bytes

_CUTS = "cuts.json"


@dataclass(frozen=True, kw_only=True)
class CutJob(Job):
    """One data set.

    Attributes:
        spool_stages: stage hashes of its spools, in part order.
        grouped: whether a group decides the split of a conversation.
    """

    task: ClassVar[str] = "cut"
    spool_stages: tuple[str, ...]
    splits: SplitsConfig
    seed: int
    grouped: bool
    deduplicate: bool
    shard_tokens: int


def cut_dataset(job: CutJob) -> Receipt:
    """Write the rotated edges of all shards to `cuts.json`; the receipt has the shards of each split.

    Raises:
        IntegrityError: a spool is damaged.
    """

    def spools() -> Iterator[SpoolReader]:
        with open_spools(job.root, job.spool_stages) as opened:
            yield from opened

    cuts = cut_shards(
        spools, job.splits, job.seed, job.shard_tokens, grouped=job.grouped, deduplicate=job.deduplicate
    )
    record = write_file(job.folder / _CUTS, json.dumps(cuts).encode()).record(job.root)
    return job.receipt(
        [record], statistics={"shards": {name: len(edges) - 1 for name, edges in cuts.items()}}
    )


def read_cuts(folder: Path, split: str) -> list[int]:
    """Return the rotated positions where a split's shards begin, and where the last one ends."""
    edges: list[int] = json.loads(read_bytes(folder / _CUTS))[split]
    return edges
