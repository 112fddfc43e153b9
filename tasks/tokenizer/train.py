"""Train on a sample, streamed, and measure on held-out rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from schemas.errors import InputError
from schemas.run import Receipt, RowLedger
from schemas.tokenizer import TrainTokenizerConfig
from tasks.run.contract import Job
from tasks.run.rejects import REJECTS, RejectWriter
from tasks.storage.parquet import open_parquet, parquet_faults
from tasks.tokenizer.bpe import save_tokenizer, train_bpe

_BATCH_ROWS = 1024
_LABELS = ("source_dataset", "source_bucket")


@dataclass(frozen=True, kw_only=True)
class TrainJob(Job):
    """Train on a sample.

    Attributes:
        shards: path and name of each file of the sample, in order.
    """

    task: ClassVar[str] = "train"
    shards: tuple[tuple[str, str], ...]
    config: TrainTokenizerConfig
    chat_template: str
    seen: dict[str, list[int]]


@dataclass
class _Share:
    """Count what one bucket contributed: rows and UTF-8 bytes trained on; rows, bytes and tokens held out."""

    rows: int = 0
    bytes: int = 0
    held_out_rows: int = 0
    held_out_bytes: int = 0
    held_out_tokens: int = 0


def train_tokenizer(job: TrainJob) -> Receipt:
    """Train, save, and measure bytes per token by bucket; save nothing if there is no row to train on.

    Raises:
        InputError: a shard has no text column, or cannot be read.
        MissingExtraError: tokenizers is not installed.
        StorageError: a file cannot be written.
    """
    config = job.config
    shares: dict[str, _Share] = {}
    with RejectWriter(job.folder / REJECTS) as rejects:
        texts = _training_texts(job, shares, rejects)
        tokenizer = train_bpe(texts, config.vocabulary_size, config.special_tokens, config.min_frequency)
        nulls = rejects.rows
        records = rejects.finish(job.root)
    trained = sum(share.rows for share in shares.values())
    held_out = sum(share.held_out_rows for share in shares.values())
    if trained:
        records += save_tokenizer(
            tokenizer, job.folder, job.root, job.chat_template, config.eos_token, config.pad_token
        )
        _measure(job, tokenizer, shares)
    return job.receipt(
        records,
        RowLedger(
            rows_in=trained + held_out + nulls,
            rows_used=trained,
            not_selected=held_out,
            rejected={"null_text": nulls} if nulls else {},
        ),
        {
            "vocabulary_size": int(tokenizer.get_vocab_size()),
            "buckets": [_report(label, share) for label, share in shares.items()],
        },
    )


def _training_texts(job: TrainJob, shares: dict[str, _Share], rejects: RejectWriter) -> Iterator[list[str]]:
    for label, texts, held_out in _batches(job, rejects):
        share = shares.setdefault(label, _Share())
        share.held_out_rows += int(held_out.sum())
        kept = texts.filter(pa.array(~held_out))
        share.rows += len(kept)
        share.bytes += kept.nbytes
        yield kept.to_pylist()


def _measure(job: TrainJob, tokenizer: Any, shares: dict[str, _Share]) -> None:
    if not job.config.held_out:
        return
    for label, texts, held_out in _batches(job):
        chosen = texts.filter(pa.array(held_out)).to_pylist()
        if chosen:
            encoded = tokenizer.encode_batch_fast(chosen, add_special_tokens=False)
            shares[label].held_out_tokens += sum(len(one) for one in encoded)
            shares[label].held_out_bytes += sum(len(text.encode()) for text in chosen)


def _batches(job: TrainJob, rejects: RejectWriter | None = None) -> Iterator[tuple[str, pa.Array, Any]]:
    """Yield label, texts without nulls, and bool[n] that says which are held out; each batch is from one bucket.

    Args:
        rejects: where to list the rows without a text.
    """
    for number, (path, name) in enumerate(job.shards):
        # One random stream for each shard: with other batches, the same rows must be held out.
        rng = np.random.default_rng([job.config.seed, number])
        first = 0
        for batch in _read(Path(path)):
            held_out = rng.random(batch.num_rows) < job.config.held_out
            texts = batch.column(0).cast(pa.string())
            valid = texts.is_valid().to_numpy(zero_copy_only=False)
            if rejects is not None:
                for row in np.flatnonzero(~valid).tolist():
                    rejects.add(name, first + row, "null_text", "text is null")
            first += batch.num_rows
            for label, rows in _by_label(batch):
                chosen = np.zeros(batch.num_rows, dtype=bool)
                chosen[rows] = True
                chosen &= valid
                yield label, texts.filter(pa.array(chosen)), held_out[chosen]


def _read(shard: Path) -> Iterator[pa.RecordBatch]:
    with parquet_faults(str(shard)), open_parquet(shard) as file:
        names = file.schema_arrow.names
        if "text" not in names:
            raise InputError(
                f"the shard has no column 'text' (columns: {', '.join(names[:10])})",
                code="missing_column",
                where=str(shard),
            )
        columns = ["text", *(name for name in _LABELS if name in names)]
        for batch in file.iter_batches(_BATCH_ROWS, columns=columns, use_threads=False):
            yield batch.select(columns)


def _by_label(batch: pa.RecordBatch) -> Iterator[tuple[str, Any]]:
    """Yield each bucket of the batch with its rows; there is nearly always just one."""
    if batch.num_columns == 1:
        yield "all", slice(None)
        return
    labels = np.array(
        ["/".join(map(str, pair)) for pair in zip(*(c.to_pylist() for c in batch.columns[1:]), strict=True)]
    )
    for label in dict.fromkeys(labels.tolist()):
        yield label, labels == label


def _report(label: str, share: _Share) -> dict[str, Any]:
    ratio = round(share.held_out_bytes / share.held_out_tokens, 4) if share.held_out_tokens else None
    return {
        "bucket": label,
        "trained_rows": share.rows,
        "held_out_rows": share.held_out_rows,
        "held_out_bytes": share.held_out_bytes,
        "held_out_tokens": share.held_out_tokens,
        "bytes_per_token": ratio,
    }
