"""Query an output in SQL with DuckDB: one SELECT, over the given files only."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from schemas.errors import ConfigError
from schemas.inspection import Answer
from tasks.outputs.found import Place
from tasks.storage.names import scratch_folder

# Name of the column with a row's number in its file.
_NUMBERS = {"bins": "bin", "documents": "document", "rejects": "reject"}
# Columns that say where a row is.
PLACE = ("dataset", "split", "path", "shard")
# Name of the column that DuckDB adds; a user's file may have one called `filename`.
_FILE = "gristmill_file"


def parquet_view(paths: Sequence[Path], number: str, columns: Sequence[str] = PLACE) -> str:
    """Return the statement that reads Parquet files as one table.

    Args:
        number: name of the column with a row's number in its file.
        columns: those of the table `places` to put before it. Names of files are not unique, paths are.
    """
    files = ", ".join(_quoted(path) for path in paths)
    named = ", ".join(f"places.{column}" for column in columns)
    return (
        f'SELECT {named}, file_row_number AS "{number}", rows.* EXCLUDE ({_FILE}, file_row_number) '  # noqa: S608 - quoted paths
        f"FROM read_parquet([{files}], union_by_name = true, filename = '{_FILE}', file_row_number = true) AS rows "
        f"JOIN places ON places.file = rows.{_FILE}"
    )


def _bare(path: Path) -> Place:
    return Place(None, None, path.name, path.name)


def run_query(
    sql: str,
    files: dict[str, Sequence[Path]],
    streams: dict[str, pa.RecordBatchReader],
    most: int | None = None,
    place: Callable[[Path], Place] = _bare,
) -> Answer:
    """Run one query.

    A query can read only the given tables. It can neither write nor reach another file: DuckDB is shut off from
    files and configuration before it sees the query, and only SELECT-like statements run.

    Args:
        files: table name to Parquet files, which are read in place.
        streams: table name to batches, which are first copied to a temporary database.
        most: most rows to return; `None` for all.
        place: where a file is, for the columns `dataset` (of bins), `split`, `path` and `shard`.

    Raises:
        ConfigError: `bad_query`, with DuckDB's message.
    """
    import duckdb

    with _database() as connection:
        for name, stream in streams.items():
            connection.register("stream", stream)
            connection.execute(f'CREATE TABLE "{name}" AS SELECT * FROM stream')  # noqa: S608
            connection.unregister("stream")
        _add_places(connection, [path for paths in files.values() for path in paths], place)
        for name, paths in files.items():
            # Only packed shards are kept by data set; a document says its own.
            columns = PLACE if name == "bins" else PLACE[1:]
            view = parquet_view(paths, _NUMBERS.get(name, "number"), columns)
            connection.execute(f'CREATE VIEW "{name}" AS {view}')
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


def _add_places(connection: Any, paths: Sequence[Path], place: Callable[[Path], Place]) -> None:
    places = [place(path) for path in paths]
    columns = {name: pa.array([getattr(at, name) for at in places], pa.string()) for name in PLACE}
    table = pa.table({"file": pa.array(map(_settled, paths), pa.string()), **columns})
    connection.register("stream", table)
    connection.execute("CREATE TABLE places AS SELECT DISTINCT * FROM stream")
    connection.unregister("stream")


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


def _settled(path: Path) -> str:
    """Return the path without links, except for its own: a file may be in an output by several names."""
    return str(path.parent.resolve() / path.name)


def _quoted(path: Path) -> str:
    return "'" + _settled(path).replace("'", "''") + "'"
