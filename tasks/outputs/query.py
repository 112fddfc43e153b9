"""Query an output in SQL with DuckDB: one SELECT, over the given files only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from schemas.errors import ConfigError
from schemas.inspection import Answer
from tasks.storage.names import scratch_folder

# Name of the column with a row's number in its file.
_NUMBERS = {"bins": "bin", "documents": "document", "rejects": "reject"}


def parquet_view(paths: Sequence[Path], number: str) -> str:
    """Return the statement that reads Parquet files as one table.

    Args:
        number: name of the column with a row's number in its file; `shard` is the file's name.
    """
    files = ", ".join(_quoted(path) for path in paths)
    return (
        f'SELECT parse_filename(filename) AS shard, file_row_number AS "{number}", '  # noqa: S608 - quoted paths
        "* EXCLUDE (filename, file_row_number) "
        f"FROM read_parquet([{files}], union_by_name = true, filename = true, file_row_number = true)"
    )


def run_query(
    sql: str,
    files: dict[str, Sequence[Path]],
    streams: dict[str, pa.RecordBatchReader],
    most: int | None = None,
) -> Answer:
    """Run one query.

    A query can read only the given tables. It can neither write nor reach another file: DuckDB is shut off from
    files and configuration before it sees the query, and only SELECT-like statements run.

    Args:
        files: table name to Parquet files, which are read in place.
        streams: table name to batches, which are first copied to a temporary database.
        most: most rows to return; `None` for all.

    Raises:
        ConfigError: `bad_query`, with DuckDB's message.
    """
    import duckdb

    with _database() as connection:
        for name, stream in streams.items():
            connection.register("stream", stream)
            connection.execute(f'CREATE TABLE "{name}" AS SELECT * FROM stream')  # noqa: S608
            connection.unregister("stream")
        for name, paths in files.items():
            number = _NUMBERS.get(name, "number")
            connection.execute(f'CREATE VIEW "{name}" AS {parquet_view(paths, number)}')
        _lock(connection, [path for paths in files.values() for path in paths])
        try:
            return _answer(connection, duckdb, sql, most)
        except duckdb.Error as error:
            tables = ", ".join(sorted([*files, *streams]))
            problem = " ".join(str(error).split())
            raise ConfigError(
                f"the query failed: {problem}; tables: {tables}", code="bad_query", where="--sql"
            ) from error


@contextlib.contextmanager
def _database() -> Iterator[Any]:
    import duckdb

    with scratch_folder("gristmill-query-") as folder:
        database = str(Path(folder, "query.db"))
        # Without replacement scans, a query cannot use a variable of this program as a table.
        with duckdb.connect(database, config={"python_enable_replacements": "false"}) as connection:
            yield connection


def _lock(connection: Any, paths: Sequence[Path]) -> None:
    allowed = ", ".join(_quoted(path) for path in paths)
    connection.execute(f"SET allowed_paths = [{allowed}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _answer(connection: Any, duckdb: Any, sql: str, most: int | None) -> Answer:
    statements = connection.extract_statements(sql)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise ConfigError(
            "give one statement that selects (SELECT, FROM, WITH, DESCRIBE, SUMMARIZE)",
            code="bad_query",
            where="--sql",
        )
    cursor = connection.execute(statements[0])
    columns = tuple(column[0] for column in cursor.description)
    if most is None:
        return Answer(columns, tuple(cursor.fetchall()), False)
    rows = cursor.fetchmany(most + 1)
    return Answer(columns, tuple(rows[:most]), len(rows) > most)


def _quoted(path: Path) -> str:
    return "'" + str(path.resolve()).replace("'", "''") + "'"
