"""Read a sample for training: batches of one bucket each, with the rows that are held out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.errors import InputError
from tasks.inputs.columns import as_text, is_bytes, is_text
from tasks.inputs.native import panics_are_errors
from tasks.storage.parquet import open_parquet, parquet_faults
from tasks.storage.parquet_batches import parquet_batches

_BATCH_ROWS = 1024
_LABELS = ("source_dataset", "source_bucket")

_NULL = ("null_text", "text is null")
_INVALID = ("invalid_utf8", "text is not valid UTF-8")

# Called with file, row, reason and detail, as `RejectWriter.add`.
Reject = Callable[[str, int, str, str], None]
# Path and name of each file of a sample, in order.
Shards = Sequence[tuple[str, str]]


def batches(
    shards: Shards, seed: int, share: float, reject: Reject | None = None
) -> Iterator[tuple[str, pa.Array, NDArray[np.bool_]]]:
    """Yield label, texts without nulls, and bool[n] that says which are held out; each batch is from one bucket.

    Args:
        seed, share: decide which rows are held out.
        reject: called for each row without a text.

    Raises:
        InputError: a shard has no text column, or cannot be read.
    """
    for number, (path, name) in enumerate(shards):
        # One random stream for each shard: with other batches, the same rows must be held out.
        rng = np.random.default_rng([seed, number])
        first = 0
        for batch in _read(Path(path)):
            held_out = rng.random(batch.num_rows) < share
            texts, invalid = as_text(batch.column(0))
            valid = texts.is_valid().to_numpy(zero_copy_only=False)
            if reject is not None:
                for row in np.flatnonzero(~valid).tolist():
                    reject(name, first + row, *(_INVALID if invalid[row] else _NULL))
            first += batch.num_rows
            for label, rows in _by_label(batch):
                chosen = np.zeros(batch.num_rows, dtype=bool)
                chosen[rows] = True
                chosen &= valid
                yield label, texts.filter(pa.array(chosen)), held_out[chosen]


def count_held_out(tokenizer: Any, shards: Shards, seed: int, share: float) -> dict[str, tuple[int, int]]:
    """Return UTF-8 bytes and tokens of the rows held out, by label.

    Args:
        tokenizer: a `tokenizers.Tokenizer`.

    Raises:
        InputError: a shard cannot be read; `tokenizer_failed`: the tokenizer fails on a text.
    """
    counts: dict[str, tuple[int, int]] = {}
    if not share:
        return counts
    for label, texts, held_out in batches(shards, seed, share):
        chosen = texts.filter(pa.array(held_out)).to_pylist()
        if chosen:
            size, tokens = counts.get(label, (0, 0))
            encoded = _encoded(tokenizer, label, chosen)
            size += sum(len(text.encode()) for text in chosen)
            counts[label] = (size, tokens + sum(len(one) for one in encoded))
    return counts


def _encoded(tokenizer: Any, label: str, texts: list[str]) -> list[Any]:
    try:
        with panics_are_errors():
            return list(tokenizer.encode_batch_fast(texts, add_special_tokens=False))
    except Exception as error:
        if len(texts) > 1:
            return [one for text in texts for one in _encoded(tokenizer, label, [text])]
        raise InputError(
            f"{error}; the text has {len(texts[0]):,} characters and begins with {texts[0][:60]!r}; leave it out of "
            "the sample, or set held_out: 0",
            code="tokenizer_failed",
            where=f"a held-out row of {label}",
        ) from error


def _read(shard: Path) -> Iterator[pa.RecordBatch]:
    with parquet_faults(str(shard)), open_parquet(shard) as file:
        names = file.schema_arrow.names
        if names.count("text") != 1:
            raise InputError(
                f"the shard has no single column 'text' (columns: {', '.join(names[:10])})",
                code="missing_column",
                where=str(shard),
            )
        kind = file.schema_arrow.field("text").type
        if not (is_text(kind) or is_bytes(kind)):
            raise InputError(
                f"the column 'text' is {kind}, not string or binary", code="bad_column", where=str(shard)
            )
        columns = ["text", *(name for name in _LABELS if names.count(name) == 1)]
        for batch in parquet_batches(file, range(file.num_row_groups), columns, _BATCH_ROWS):
            yield batch.select(columns)


def _by_label(batch: pa.RecordBatch) -> Iterator[tuple[str, Any]]:
    """Yield each bucket of the batch with its rows; there is nearly always just one."""
    if batch.num_columns == 1:
        yield "all", slice(None)
        return
    named = (
        ["unknown" if value is None else str(value) for value in column.to_pylist()]
        for column in batch.columns[1:]
    )
    labels = np.array(["/".join(pair) for pair in zip(*named, strict=True)])
    for label in dict.fromkeys(labels.tolist()):
        yield label, labels == label
