"""Inspect anything Gristmill makes, or query it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from schemas.errors import ConfigError
from schemas.inspection import Answer, Inspection
from tasks.outputs.documents import inspect_documents, rejects_table
from tasks.outputs.finding import Kind, Outputs, find_outputs
from tasks.outputs.query import run_query


def inspect_path(path: Path, rows: int = 0, first: int = 0, tokenizer: Path | None = None) -> Inspection:
    """What lies at `path`, in numbers, and some of its rows.

    Args:
        path: a run, an output folder (its latest run), a folder of shards, a shard, or a tokenizer.
        rows: how many bins, records or documents to show, from number `first` on.
        tokenizer: folder of the tokenizer that turns packed ids into text.

    Raises:
        ConfigError: nothing there can be inspected.
        InputError, IntegrityError: it is damaged.
    """
    if rows < 0 or first < 0:
        raise ConfigError(f"{min(rows, first)} is negative", code="usage", where="--rows")
    outputs = find_outputs(path)
    inspection = _inspect(outputs, rows, first, tokenizer)
    if outputs.rejects:
        tables = rejects_table(outputs.rejects, 0, 0)
        inspection = replace(inspection, tables=(*inspection.tables, *tables))
    return inspection


def _inspect(outputs: Outputs, rows: int, first: int, tokenizer: Path | None) -> Inspection:
    match outputs.kind:
        case Kind.PACKED:
            from tasks.outputs.packed import inspect_packed

            return inspect_packed(outputs, rows, first, tokenizer)
        case Kind.PROBES:
            from tasks.outputs.probe_rows import inspect_probes

            return inspect_probes(outputs, rows, first)
        case Kind.DOCUMENTS:
            return inspect_documents(outputs, rows, first)
        case Kind.TOKENIZER:
            from tasks.outputs.tokenizers import inspect_tokenizer

            return inspect_tokenizer(outputs)
        case Kind.REJECTS:
            tables = rejects_table(outputs.files, rows, first)
            return Inspection(outputs.path, outputs.kind, tables=tables)


def query_path(path: Path, sql: str, most: int | None = None) -> Answer:
    """The answer to a query over what lies at `path`.

    The tables are `bins`, `measurements` or `documents`, by what lies there, and `rejects` if rows were rejected.

    Args:
        most: rows of the answer; `None` for all.

    Raises:
        ConfigError: nothing there can be queried, or `bad_query`.
    """
    outputs = find_outputs(path)
    files: dict[str, Sequence[Path]] = {"rejects": outputs.rejects} if outputs.rejects else {}
    streams: dict[str, pa.RecordBatchReader] = {}
    match outputs.kind:
        case Kind.PACKED if all(file.suffix == ".parquet" for file in outputs.files):
            files["bins"] = outputs.files
        case Kind.PACKED:
            from tasks.outputs.packed import packed_batches

            streams["bins"] = packed_batches(outputs.files)
        case Kind.PROBES:
            from tasks.outputs.probe_rows import measurement_batches

            streams["measurements"] = measurement_batches(outputs.files)
        case Kind.DOCUMENTS:
            files["documents"] = outputs.files
        case Kind.REJECTS:
            files["rejects"] = outputs.files
        case Kind.TOKENIZER:
            raise ConfigError("a tokenizer holds no rows to query", code="bad_query", where=str(path))
    return run_query(sql, files, streams, most)
