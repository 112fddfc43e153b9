"""Inspect anything Gristmill makes, or query it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from schemas.errors import ConfigError
from schemas.inspection import Answer, Inspection
from tasks.outputs.finding import find_outputs
from tasks.outputs.query import run_query
from tasks.outputs.rejects import rejects_tables


def inspect_path(path: Path, rows: int = 0, first: int = 0, tokenizer: Path | None = None) -> Inspection:
    """Return what is at `path` in numbers, with some of its rows.

    Args:
        path: a run, an output folder (its latest run), a folder of shards, a shard, or a tokenizer.
        rows: how many bins, records or documents to show, starting at `first`.
        tokenizer: folder of the tokenizer that decodes packed ids.

    Raises:
        ConfigError: nothing there can be inspected.
        InputError, IntegrityError: it is damaged.
    """
    if rows < 0 or first < 0:
        raise ConfigError(f"{min(rows, first)} is negative", code="usage", where="--rows")
    domain, outputs = find_outputs(path)
    inspection = domain.inspect(outputs, rows, first, tokenizer)
    if outputs.rejects:
        inspection = replace(inspection, tables=(*inspection.tables, *rejects_tables(outputs.rejects)))
    return inspection


def query_path(path: Path, sql: str, most: int | None = None) -> Answer:
    """Run a query over what is at `path`.

    The tables are `bins`, `measurements` or `documents`, by kind of output, and `rejects` if rows were rejected.

    Args:
        most: most rows to return; `None` for all.

    Raises:
        ConfigError: nothing there can be queried, or `bad_query`.
    """
    domain, outputs = find_outputs(path)
    tables = domain.query(outputs)
    rejects = {"rejects": outputs.rejects} if outputs.rejects else {}
    return run_query(sql, {**rejects, **tables.files}, tables.streams, most)
