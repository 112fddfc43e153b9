"""Inspect anything Gristmill makes, or query it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from schemas.errors import ConfigError, InputError
from schemas.inspection import Answer, Inspection
from tasks.outputs.domains import Domain
from tasks.outputs.finding import find_outputs
from tasks.outputs.found import Outputs
from tasks.outputs.query import Limits, run_query
from tasks.outputs.rejects import rejects_tables
from tasks.run.find import local_path


def inspect_path(
    path: Path | str,
    rows: int = 0,
    first: int = 0,
    tokenizer: Path | None = None,
    split: str | None = None,
    dataset: str | None = None,
) -> Inspection:
    """Return what is at `path` in numbers, with some of its rows.

    Args:
        path: a run, an output folder (its latest run), a folder of shards, a shard, or a tokenizer.
        rows: how many bins, records or documents to show, starting at `first`.
        tokenizer: folder of the tokenizer that decodes packed ids.
        split, dataset: take only the shards of this split, of this data set of packed bins.

    Raises:
        ConfigError: nothing there can be inspected, `missing_split`, `missing_dataset`, or `first` is beyond the end.
        InputError, IntegrityError: it is damaged.
    """
    if rows < 0 or first < 0:
        raise ConfigError(f"{min(rows, first)} is negative", code="usage", where="--rows")
    domain, outputs = _outputs(path, split, dataset)
    inspection = domain.inspect(outputs, rows, first, tokenizer)
    if first and first >= inspection.rows:
        last = f"allowed: 0 to {inspection.rows - 1}" if inspection.rows else "there are no rows to show"
        raise ConfigError(
            f"{first} is beyond the end of these {outputs.kind}; {last}", code="usage", where="--first"
        )
    if outputs.rejects:
        inspection = replace(inspection, tables=(*inspection.tables, *rejects_tables(outputs.rejects)))
    return inspection


def query_path(
    path: Path | str,
    sql: str,
    most: int | None = None,
    split: str | None = None,
    dataset: str | None = None,
    limits: Limits | None = None,
) -> Answer:
    """Run a query over what is at `path`.

    The tables are `bins`, `measurements` or `documents`, by kind of output, and `rejects` if rows were rejected.
    Their first columns say where a row is: `dataset` (of bins and rejects), `split`, `path` in the run or folder,
    `shard` (the last part of it) and `bin`, `record`, `document` or `reject`, its number in the shard. A column of
    the data keeps its name; ours is then `shard_path` and so on. Without ORDER BY, rows come in file order.

    Args:
        most: most rows to return; `None` for all.
        split, dataset: as for `inspect_path`.
        limits: what the query may take.

    Raises:
        ConfigError: nothing there can be queried, or as `run_query`.
    """
    domain, outputs = _outputs(path, split, dataset)
    tables = domain.query(outputs)
    rejects = {"rejects": outputs.rejects} if outputs.rejects else {}
    return run_query(sql, {**rejects, **tables.files}, tables.streams, most, outputs.place, limits)


def _outputs(path: Path | str, split: str | None, dataset: str | None) -> tuple[Domain, Outputs]:
    local = local_path(path)
    if local is None:
        raise InputError(
            "only local or mounted files can be inspected; copy or mount them, or use `validate` and the readers, "
            "which read packed Parquet behind a URI",
            code="remote_input",
            where=str(path),
        )
    domain, outputs = find_outputs(local)
    return domain, outputs.chosen(split, dataset)
