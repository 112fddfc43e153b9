"""Measure another tokenizer on the rows held out, in a stage of its own, so that adding it trains nothing again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from schemas.run import Receipt
from tasks.run.contract import Job
from tasks.tokenizer.loading import load_tokenizer
from tasks.tokenizer.rows import Shards, count_held_out
from tasks.tokenizer.train import ratio


@dataclass(frozen=True, kw_only=True)
class CompareJob(Job):
    """Measure a tokenizer on the rows held out.

    Attributes:
        shards: as for training.
        seed, held_out: decide which rows are held out.
        tokenizer: its `tokenizer.json`.
    """

    task: ClassVar[str] = "compare"
    shards: Shards
    seed: int
    held_out: float
    tokenizer: str


def compare_tokenizer(job: CompareJob) -> Receipt:
    """Count the tokens of the rows held out, by bucket.

    Raises:
        InputError: the tokenizer or a shard cannot be read.
        MissingExtraError: tokenizers is not installed.
    """
    tokenizer = load_tokenizer(Path(job.tokenizer))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    counts = count_held_out(tokenizer, job.shards, job.seed, job.held_out)
    return job.receipt(
        [],
        statistics={
            "vocabulary_size": int(tokenizer.get_vocab_size()),
            "tokens": {label: tokens for label, (_, tokens) in counts.items()},
        },
    )


def with_comparison(buckets: Sequence[dict[str, Any]], compared: Sequence[Receipt]) -> list[dict[str, Any]]:
    """Return the trained buckets with the tokens and bytes per token of the compared tokenizer, if there is one."""
    if not compared:
        return list(buckets)
    [receipt] = compared
    tokens: dict[str, int] = receipt.statistics["tokens"]
    return [
        {
            **bucket,
            "compared_tokens": tokens.get(bucket["bucket"], 0),
            "compared_bytes_per_token": ratio(bucket["held_out_bytes"], tokens.get(bucket["bucket"], 0)),
        }
        for bucket in buckets
    ]
