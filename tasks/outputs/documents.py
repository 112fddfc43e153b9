"""Inspect sampled documents: how many per source and bucket, how long, and the first of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.errors import InputError
from schemas.inspection import Inspection
from schemas.report import Chart, Column, Fact, Passage, Sample, Series, Table
from tasks.outputs.found import Outputs, Tables
from tasks.report.histogram import power_classes
from tasks.report.numbers import binary, count, size
from tasks.storage.parquet import PARQUET_ERRORS, open_parquet
from tasks.storage.reading import file_bytes

_BATCH_ROWS = 1_024
# Most characters of a text that is shown.
_MOST_CHARACTERS = 1_200


def inspect_documents(outputs: Outputs, rows: int, first: int, tokenizer: Path | None = None) -> Inspection:
    """Inspect the shards of a sample.

    Args:
        rows: number of documents to show, starting at `first`.

    Raises:
        InputError: a shard cannot be read.
    """
    by_bucket: Counter[tuple[str, str]] = Counter()
    text_bytes: Counter[tuple[str, str]] = Counter()
    lengths: Counter[int] = Counter()
    samples: list[Sample] = []
    number = 0
    for path in outputs.files:
        try:
            with open_parquet(path) as file:
                for batch in file.iter_batches(_BATCH_ROWS, use_threads=False):
                    _count(batch, by_bucket, text_bytes, lengths)
                    start = max(first - number, 0)
                    wanted = max(0, rows - len(samples))
                    samples += _samples(batch.slice(start, wanted), number + start)
                    number += batch.num_rows
        except (*PARQUET_ERRORS, KeyError) as error:
            raise InputError(f"not a readable shard: {error}", code="bad_parquet", where=str(path)) from error
    facts = (
        Fact("documents", count(number), f"in {count(len(outputs.files))} shards"),
        Fact("text", size(sum(text_bytes.values()))),
        Fact("stored", size(sum(map(file_bytes, outputs.files)))),
    )
    lines = tuple(
        (*key, count(rows_of), size(text_bytes[key]), count(text_bytes[key] / rows_of))
        for key, rows_of in by_bucket.items()
    )
    columns = (
        Column("source"),
        Column("bucket"),
        Column("documents", True),
        Column("text", True),
        Column("bytes each", True),
    )
    table = Table("Sources and buckets", columns, lines)
    return Inspection(
        outputs.path, outputs.kind, facts, (table,), (_histogram(lengths),), tuple(samples), number
    )


def _count(
    batch: pa.RecordBatch,
    by_bucket: Counter[tuple[str, str]],
    text_bytes: Counter[tuple[str, str]],
    lengths: Counter[int],
) -> None:
    table = pa.table(
        {
            "source": batch["source_dataset"].cast(pa.string()),
            "bucket": batch["source_bucket"].cast(pa.string()),
            "bytes": pc.binary_length(batch["text"]).cast(pa.int64()),
        }
    )
    for row in (
        table.group_by(["source", "bucket"]).aggregate([("bytes", "sum"), ("bytes", "count")]).to_pylist()
    ):
        key = (str(row["source"]), str(row["bucket"]))
        by_bucket[key] += row["bytes_count"]
        text_bytes[key] += row["bytes_sum"] or 0
    sizes = table["bytes"].fill_null(0).to_numpy()
    powers = np.ceil(np.log2(np.maximum(sizes, 1))).astype(np.int64)
    for power, documents in enumerate(np.bincount(powers).tolist()):
        if documents:
            lengths[1 << power] += documents


def _histogram(lengths: Counter[int]) -> Chart:
    ends, documents = power_classes(lengths)
    series = Series("documents", tuple(map(float, documents)), tuple(map(count, documents)))
    return Chart(
        "Text lengths",
        "Each class reaches up to a power of two.",
        "bytes, up to",
        tuple(map(binary, ends)),
        (series,),
        upright=True,
    )


def _samples(batch: pa.RecordBatch, first: int) -> list[Sample]:
    return [
        Sample(
            f"Document {count(first + place)}, {row['source_dataset']} {row['source_bucket']}",
            ((Passage(cut(str(row["text"])), False),),),
            f"{count(len(str(row['text'])))} characters",
            (
                Fact("document", count(first + place)),
                Fact("source", str(row["source_dataset"])),
                Fact("bucket", str(row["source_bucket"])),
                Fact("characters", count(len(str(row["text"])))),
            ),
        )
        for place, row in enumerate(batch.to_pylist())
    ]


def cut(text: str) -> str:
    """Shorten a text to its first 1,200 characters for display."""
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"


def query_documents(outputs: Outputs) -> Tables:
    """Return the table `documents`."""
    return Tables(files={"documents": outputs.files})
