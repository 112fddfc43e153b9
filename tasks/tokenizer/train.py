"""Train on a sample, streamed, and measure on held-out rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from schemas.errors import ConfigError, InputError
from schemas.run import Receipt, RowLedger
from schemas.tokenizer import TrainTokenizerConfig
from tasks.inputs.native import NativePanicError, panics_are_errors
from tasks.run.contract import Job
from tasks.run.rejects import REJECTS, RejectWriter
from tasks.tokenizer.base import learn_from
from tasks.tokenizer.learn import learn
from tasks.tokenizer.rows import Reject, Shards, batches, count_held_out
from tasks.tokenizer.save import save_tokenizer, settings

# What the trainer of unigram says of a vocabulary that is too small.
_NO_ROOM = "vocabulary is not large enough"


@dataclass(frozen=True, kw_only=True)
class TrainJob(Job):
    """Train on a sample.

    Attributes:
        shards: path and name of each file of the sample, in order.
        base: folder of the tokenizer to train from, or an empty string.
        chat_template: source of the template; empty for that of the base.
    """

    task: ClassVar[str] = "train"
    shards: Shards
    config: TrainTokenizerConfig
    base: str
    chat_template: str
    seen: dict[str, list[int]]


@dataclass
class _Share:
    """Count the rows of one bucket: trained on, and held out."""

    rows: int = 0
    held_out_rows: int = 0


def train_tokenizer(job: TrainJob) -> Receipt:
    """Train, save, and measure bytes per token by bucket; save nothing if there is no row to train on.

    Raises:
        ConfigError: the base cannot be loaded, an option does not fit it, or the vocabulary has no room for the
            alphabet.
        InputError: a shard has no text column, or cannot be read; `tokenizer_failed`: a text is too much for the
            trainer.
        MissingExtraError: tokenizers is not installed, or for a base transformers.
        StorageError: a file cannot be written.
    """
    config = job.config
    shares: dict[str, _Share] = {}
    rejected: Counter[str] = Counter()
    with RejectWriter(job.folder / REJECTS) as rejects:

        def reject(file: str, row: int, reason: str, detail: str) -> None:
            rejects.add(file, row, reason, detail)
            rejected[reason] += 1

        tokenizer, description = _learn(job, shares, reject)
        records = rejects.finish(job.root)
    size = int(tokenizer.get_vocab_size())
    if size > config.vocabulary_size:
        raise _no_room(config, f", which are {size}")
    trained = sum(share.rows for share in shares.values())
    held_out = sum(share.held_out_rows for share in shares.values())
    counts: dict[str, tuple[int, int]] = {}
    if trained:
        records += save_tokenizer(tokenizer, job.folder, job.root, description)
        counts = count_held_out(tokenizer, job.shards, config.seed, config.held_out)
    return job.receipt(
        records,
        RowLedger(
            rows_in=trained + held_out + rejected.total(),
            rows_used=trained,
            not_selected=held_out,
            rejected=dict(rejected),
        ),
        {
            "vocabulary_size": size,
            "buckets": [_report(label, share, counts.get(label, (0, 0))) for label, share in shares.items()],
        },
    )


def _learn(job: TrainJob, shares: dict[str, _Share], reject: Reject) -> tuple[Any, dict[str, Any]]:
    def texts() -> Iterator[list[str]]:
        # Some models read the sample more than once; its rows count once.
        counts = not shares
        found = batches(job.shards, job.config.seed, job.config.held_out, reject if counts else None)
        for label, rows, held_out in found:
            if counts:
                share = shares.setdefault(label, _Share())
                share.rows += int((~held_out).sum())
                share.held_out_rows += int(held_out.sum())
            yield rows.filter(pa.array(~held_out)).to_pylist()

    try:
        with panics_are_errors():
            if job.base:
                return learn_from(job.base, texts, job.config, job.chat_template)
            return learn(texts, job.config), settings(job.config, job.chat_template)
    except NativePanicError as error:
        raise InputError(
            f"{error}; a text of the sample is too much for its pre-tokenizer, as 10 million spaces in a row can be; "
            "leave it out of the sample, or choose another pre_tokenizer",
            code="tokenizer_failed",
            where=Path(job.shards[0][0]).parent.as_posix(),
        ) from error
    # The trainer of unigram raises bare Exception; the others exceed the size instead.
    except Exception as error:
        if _NO_ROOM not in str(error):
            raise
        raise _no_room(job.config) from error


def _no_room(config: TrainTokenizerConfig, needed: str = "") -> ConfigError:
    return ConfigError(
        f"{config.vocabulary_size} has no room for the alphabet and the special tokens{needed}; raise it",
        code="bad_config",
        where="vocabulary_size",
    )


def _report(label: str, share: _Share, counts: tuple[int, int]) -> dict[str, Any]:
    size, tokens = counts
    return {
        "bucket": label,
        "trained_rows": share.rows,
        "held_out_rows": share.held_out_rows,
        "held_out_bytes": size,
        "held_out_tokens": tokens,
        "bytes_per_token": ratio(size, tokens),
    }


def ratio(size: int, tokens: int) -> float | None:
    """Return bytes per token; `None` if there are no tokens."""
    return round(size / tokens, 4) if tokens else None
