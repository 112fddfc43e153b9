"""Inspect and validate reject files: rows by reason, examples, and agreement with the run's ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from schemas.errors import InputError
from schemas.inspection import Inspection
from schemas.report import Column, Table
from schemas.verdict import Fault, Verdict
from tasks.inputs.columns import check_columns, is_text
from tasks.outputs.documents import cut
from tasks.outputs.found import Outputs, Tables
from tasks.report.numbers import count
from tasks.run.find import Found
from tasks.run.layout import MANIFEST
from tasks.storage.parquet import PARQUET_ERRORS, parquet_file, parquet_rows
from tasks.storage.remote import open_location

REJECTS = "rejects/"

_BATCH_ROWS = 65_536

_COLUMNS = {
    "source_file": (is_text, "string"),
    "row": (pa.types.is_int64, "int64"),
    "reason": (is_text, "string"),
    "detail": (is_text, "string"),
}


def validate_rejects(files: Sequence[Path], kind: str, where: str) -> Verdict:
    """Validate reject files on their own; count `reject_files` and `rejected_rows`."""
    checked = [check_columns(file, _COLUMNS) for file in files]
    return Verdict(
        path=where,
        kind=kind,
        counts={"reject_files": len(files), "rejected_rows": sum(rows for rows, _ in checked)},
        faults=tuple(fault for _, faults in checked for fault in faults),
    )


def check_ledger(run: Found[Any]) -> list[Fault]:
    """Check that the reject files list the rejected rows that the ledger counts."""
    listed: Counter[str] = Counter()
    for file in run.outputs(REJECTS):
        try:
            # What is missing is reported as such.
            for batch in _batches(file, ["reason"]) if isinstance(file, str) or file.is_file() else ():
                listed.update(_reasons(batch))
        except InputError as error:
            return [Fault(where=error.where, rule="readable", detail=error.message)]
    rejected = run.manifest.ledger.rejected
    if listed == rejected:
        return []
    detail = f"the ledger counts {rejected} as rejected, but the files in {REJECTS} list {dict(listed)}"
    return [Fault(where=str(run.at(MANIFEST)), rule="ledger", detail=detail)]


def inspect_rejects(outputs: Outputs, rows: int, first: int, tokenizer: Path | None = None) -> Inspection:
    """Inspect reject files.

    Args:
        rows: number of rejected rows to show, starting at `first`.

    Raises:
        InputError: a file cannot be read.
    """
    tables = rejects_tables(outputs.files, rows, first)
    total = sum(parquet_rows(file) for file in outputs.files)
    return Inspection(outputs.path, outputs.kind, tables=tables, rows=total)


def rejects_tables(files: Sequence[Path], rows: int = 0, first: int = 0) -> tuple[Table, ...]:
    """Return tables of rejected rows by reason, and some of the rows.

    Raises:
        InputError: a file cannot be read.
    """
    reasons: Counter[str] = Counter()
    shown: list[tuple[str, ...]] = []
    number = 0
    for file in files:
        for batch in _batches(file):
            reasons.update(_reasons(batch))
            some = batch.slice(max(first - number, 0), max(0, rows - len(shown)))
            shown += [
                (str(row["reason"]), str(row["source_file"]), count(row["row"]), cut(str(row.get("detail"))))
                for row in some.to_pylist()
            ]
            number += batch.num_rows
    by_reason = Table(
        "Rejected rows by reason",
        (Column("reason"), Column("rows", True)),
        tuple((reason, count(rows_of)) for reason, rows_of in reasons.most_common()),
    )
    columns = (Column("reason"), Column("file"), Column("row", True), Column("detail"))
    return (by_reason, Table("Rejected rows", columns, tuple(shown))) if shown else (by_reason,)


def query_rejects(outputs: Outputs) -> Tables:
    """Return the table `rejects`."""
    return Tables(files={"rejects": outputs.files})


def _batches(file: Path | str, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    try:
        with open_location(file) as source, parquet_file(source) as opened:
            _check_columns(opened.schema_arrow, str(file))
            yield from opened.iter_batches(_BATCH_ROWS, columns=columns)
    except PARQUET_ERRORS as error:
        raise InputError(
            f"not a readable reject file: {error}", code="bad_parquet", where=str(file)
        ) from error


def _check_columns(schema: pa.Schema, where: str) -> None:
    """Check the columns that are read; `validate_rejects` judges all of them.

    Raises:
        InputError: `bad_parquet`: one is missing or of another type.
    """
    for name in ("source_file", "row", "reason"):
        is_expected, expected = _COLUMNS[name]
        found = schema.get_all_field_indices(name)
        if len(found) != 1 or not is_expected(schema.field(found[0]).type):
            raise InputError(
                f"not a readable reject file: it has no single column {name!r} of {expected}",
                code="bad_parquet",
                where=where,
            )


def _reasons(batch: pa.RecordBatch) -> dict[str, int]:
    return {str(entry["values"]): entry["counts"] for entry in batch["reason"].value_counts().to_pylist()}
