"""Report rejected rows by reason, with a few examples of each."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from schemas.report import Column, Table
from schemas.run import RowLedger
from tasks.report.numbers import count, share
from tasks.run.publish import Publication
from tasks.storage.parquet import open_parquet

_SAMPLES = 3
# Reject files are read until every reason has its samples, but no further than this.
_MOST_ROWS = 100_000
_MOST_CHARACTERS = 160


def reject_tables(publication: Publication) -> tuple[Table, ...]:
    """Return the tables of rows by reason and of samples; none if no row was rejected."""
    ledger = publication.ledger
    if not ledger.rows_rejected:
        return ()
    root = Path(publication.output_dir)
    files = [root / record.path for name, record in publication.links.items() if name.startswith("rejects/")]
    return (_by_reason(ledger), _sampled(files, ledger))


def _by_reason(ledger: RowLedger) -> Table:
    reasons = sorted(ledger.rejected.items(), key=lambda item: (-item[1], item[0]))
    return Table(
        "Rejected rows by reason",
        (Column("reason"), Column("rows", True), Column("share of rows read", True)),
        tuple((reason, count(rows), share(rows, ledger.rows_in)) for reason, rows in reasons),
    )


def _sampled(files: Iterable[Path], ledger: RowLedger) -> Table:
    wanted = {reason: min(rows, _SAMPLES) for reason, rows in ledger.rejected.items()}
    found: list[tuple[str, ...]] = []
    read = 0
    for path in files:
        with open_parquet(path) as file:
            for batch in file.iter_batches(4096):
                for row in batch.to_pylist():
                    if wanted.get(row["reason"], 0) > 0:
                        wanted[row["reason"]] -= 1
                        found.append(_sample(row))
                read += batch.num_rows
                if not any(wanted.values()) or read >= _MOST_ROWS:
                    break
        if not any(wanted.values()) or read >= _MOST_ROWS:
            break
    columns = (Column("reason"), Column("file"), Column("row", True), Column("detail"))
    note = f"Up to {_SAMPLES} rows of each reason; rejects/ lists them all."
    return Table("Some rejected rows", columns, tuple(sorted(found, key=lambda line: line[0])), note)


def _sample(row: dict[str, object]) -> tuple[str, ...]:
    detail = str(row["detail"])
    if len(detail) > _MOST_CHARACTERS:
        detail = f"{detail[:_MOST_CHARACTERS]}…"
    return str(row["reason"]), str(row["source_file"]), str(row["row"]), detail
