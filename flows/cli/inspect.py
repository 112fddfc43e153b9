"""Implement the command `inspect`, which shows the content of an output in a terminal or as JSON."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from flows.cli.plain import print_json
from flows.cli.rendering import make_console, print_chart, print_facts, print_sample, print_table, printable
from schemas.errors import ConfigError
from schemas.inspection import Answer, Inspection
from schemas.report import Column, Table

# Rows of an answer that a terminal shows.
_MOST_ROWS = 100
# A week.
_LONGEST_S = 604_800


def inspect(options: argparse.Namespace) -> int:
    """Run the command and return its exit code.

    Raises:
        ConfigError: `usage`: a limit of a query is out of its range.
    """
    from tasks.outputs.inspect import inspect_path, query_path
    from tasks.outputs.query import Limits

    if options.sql_memory < 1 or not 0 < options.sql_timeout <= _LONGEST_S:
        raise ConfigError(
            f"allowed: --sql-memory from 1 MiB, --sql-timeout above 0 and up to {_LONGEST_S:,} s",
            code="usage",
        )
    path, chosen = options.path, {"split": options.split, "dataset": options.dataset}
    if options.sql is not None:
        most = None if options.json else _MOST_ROWS
        limits = Limits(options.sql_memory, options.sql_timeout)
        print_answer(query_path(path, options.sql, most, **chosen, limits=limits), options.json)
    else:
        tokenizer = Path(options.tokenizer) if options.tokenizer else None
        print_inspection(inspect_path(path, options.rows, options.first, tokenizer, **chosen), options.json)
    return 0


def print_inspection(inspection: Inspection, as_json: bool) -> None:
    """Print all parts of an inspection, in reading order."""
    if as_json:
        print_json(inspection)
        return
    console = make_console()
    console.print(f"{printable(inspection.path)}: {inspection.kind}", markup=False, soft_wrap=True)
    print_facts(console, inspection.facts)
    for table in inspection.tables:
        print_table(console, table)
    for chart in inspection.charts:
        print_chart(console, chart)
    for sample in inspection.samples:
        print_sample(console, sample)


def print_answer(answer: Answer, as_json: bool) -> None:
    """Print the rows of a query's answer."""
    if as_json:
        print_json({"columns": answer.columns, "rows": answer.rows})
        return
    columns = tuple(
        Column(name, all(isinstance(row[place], int | float) for row in answer.rows))
        for place, name in enumerate(answer.columns)
    )
    rows = tuple(tuple(_cell(value) for value in row) for row in answer.rows)
    note = f"first {len(rows)} rows; use --json for all of them" if answer.more else f"{len(rows)} rows"
    print_table(make_console(), Table("Answer", columns, rows, note))


def _cell(value: Any) -> str:
    text = "NULL" if value is None else str(value)
    return text if len(text) <= 400 else f"{text[:400]}…"
