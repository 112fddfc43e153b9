"""Query an output in SQL with DuckDB: one SELECT, over the given files only."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from schemas.errors import ConfigError
from schemas.inspection import Answer
from tasks.outputs.found import Place
from tasks.storage.names import scratch_folder

# Name of the column with a row's number in its file.
_NUMBERS = {"bins": "bin", "documents": "document", "rejects": "reject"}
# Columns that say where a row is; a column of the data keeps its name, see `own_name`.
PLACE = ("dataset", "split", "path", "shard")
# Name of the column that DuckDB adds; a user's file may have one called `filename`.
_FILE = "gristmill_file"


# An answer is held as Python objects of about 100 bytes.
_MOST_VALUES = 5_000_000
_FETCHED_ROWS = 10_000
# Bytes on disk for each byte of memory.
_SPILL_FACTOR = 10
_INTERRUPT_S = 0.02


@dataclass(frozen=True)
class Limits:
    """Limit what a query may take.

    Attributes:
        memory_mib: of DuckDB, in MiB; beyond it, it writes to a temporary folder, ten times as much at most.
        timeout_s: for everything, in seconds.
    """

    memory_mib: int = 2048
    timeout_s: float = 300.0


def own_name(name: str, taken: Collection[str]) -> str:
    """Return the name of one of our columns in a table whose data have the columns `taken`.

    >>> own_name("path", {"text", "lang"}), own_name("path", {"text", "Path"})
    ('path', 'shard_path')
    """
    used = {column.lower() for column in taken}  # as DuckDB compares names
    while name in used:
        name = f"shard_{name}"
    return name


def parquet_view(
    places: Mapping[Path, Place], number: str, columns: Sequence[str] = PLACE, taken: Collection[str] = ()
) -> str:
    """Return the statement that reads Parquet files as one table, in the order of the files and of their rows.

    Where a row is comes from a constant for each file, not from a join, which returns rows in any order.

    Args:
        places: where each file is.
        number: name of the column with a row's number in its file.
        columns: those of `Place` to put before it.
        taken: the columns of the files.
    """
    settled = {_quoted(path): place for path, place in places.items()}
    named = []
    for column in columns:
        values = ", ".join(f"{file}: {_literal(getattr(place, column))}" for file, place in settled.items())
        named.append(f'MAP {{{values}}}[rows.{_FILE}]::VARCHAR AS "{own_name(column, taken)}"')
    return (
        f'SELECT {", ".join(named)}, rows.file_row_number AS "{own_name(number, taken)}", '  # noqa: S608 - quoted
        f"rows.* EXCLUDE ({_FILE}, file_row_number) FROM {_read(places)} AS rows"
    )


def _read(paths: Collection[Path]) -> str:
    files = ", ".join(map(_quoted, paths))
    return f"read_parquet([{files}], union_by_name = true, filename = '{_FILE}', file_row_number = true)"


def _bare(path: Path) -> Place:
    return Place(None, None, path.name, path.name)


def run_query(
    sql: str,
    files: dict[str, Sequence[Path]],
    streams: dict[str, pa.RecordBatchReader],
    most: int | None = None,
    place: Callable[[Path], Place] = _bare,
    limits: Limits | None = None,
) -> Answer:
    """Run one query.

    A query can read only the given tables. It can neither write nor reach another file: DuckDB is shut off from
    files and configuration before it sees the query, and only SELECT-like statements run.

    Args:
        files: table name to Parquet files, which are read in place.
        streams: table name to batches, which are first copied to a temporary database.
        most: most rows to return; `None` for all.
        place: where a file is, for the columns `dataset` (of bins and rejects), `split`, `path` and `shard`; if the
            data have a column of that name, ours is `shard_path` and so on.
        limits: what the query may take.

    Raises:
        ConfigError: `bad_query`, with DuckDB's message; `query_timeout`, `query_memory`: it reached a limit;
            `answer_too_large`: its answer has more than 5 million values.
    """
    import duckdb

    limits = limits or Limits()
    with _database(limits.memory_mib) as connection:

        def work() -> Answer:
            _make_tables(connection, files, streams, place)
            try:
                return _answer(connection, duckdb, sql, most)
            except (duckdb.InterruptException, duckdb.OutOfMemoryException):
                raise
            except duckdb.Error as error:
                tables = ", ".join(sorted([*files, *streams]))
                problem = " ".join(str(error).split())
                raise ConfigError(
                    f"the query failed: {problem}; tables: {tables}", code="bad_query", where="--sql"
                ) from error

        try:
            return _in_time(connection, work, limits.timeout_s)
        except duckdb.OutOfMemoryException as error:
            raise ConfigError(
                f"the query needs more than {limits.memory_mib:,} MiB of memory; select less, or raise --sql-memory",
                code="query_memory",
                where="--sql",
            ) from error


def _make_tables(
    connection: Any,
    files: Mapping[str, Sequence[Path]],
    streams: dict[str, pa.RecordBatchReader],
    place: Callable[[Path], Place],
) -> None:
    for name, stream in streams.items():
        connection.register("stream", stream)
        connection.execute(f'CREATE TABLE "{name}" AS SELECT * FROM stream')  # noqa: S608
        connection.unregister("stream")
    for name, paths in files.items():
        # A document says its own data set.
        columns = PLACE if name in ("bins", "rejects") else PLACE[1:]
        places = {path: place(path) for path in paths}
        taken = {row[0] for row in connection.execute(f"DESCRIBE FROM {_read(paths)}").fetchall()}
        view = parquet_view(places, _NUMBERS.get(name, "number"), columns, taken)
        connection.execute(f'CREATE VIEW "{name}" AS {view}')
    _lock(connection, [path for paths in files.values() for path in paths])


def _in_time(connection: Any, work: Callable[[], Answer], timeout_s: float) -> Answer:
    """Return what `work` returns, unless the time is up before; then, and after Ctrl-C, interrupt the connection.

    Raises:
        ConfigError: `query_timeout`.
    """
    outcome: list[Answer | BaseException] = []
    ended = threading.Event()
    # Taken by the query as it begins, or here so that it does not; an interrupt may come before its thread runs.
    turn = threading.Lock()

    def run() -> None:
        if not turn.acquire(blocking=False):
            return
        try:
            outcome.append(work())
        except BaseException as error:
            outcome.append(error)
        ended.set()

    try:
        # In a thread of its own: DuckDB notices Ctrl-C only between its tasks, which may take minutes. Not joined:
        # Python 3.11 takes a thread for ended if Ctrl-C interrupts the join.
        threading.Thread(target=run, name="query", daemon=True).start()
        ended.wait(timeout_s)
        if not outcome:
            raise ConfigError(
                f"the query took more than {timeout_s:g} s; select less, or raise --sql-timeout",
                code="query_timeout",
                where="--sql",
            )
        [answer] = outcome
        if isinstance(answer, BaseException):
            raise answer
        return answer
    finally:
        if not turn.acquire(blocking=False):
            # Again and again: between two statements or batches, an interrupt is lost.
            while not outcome:
                connection.interrupt()
                time.sleep(_INTERRUPT_S)


@contextlib.contextmanager
def _database(memory_mib: int) -> Iterator[Any]:
    import duckdb

    with scratch_folder("gristmill-query-") as folder:
        database = str(Path(folder, "query.db"))
        # Without replacement scans, a query cannot use a variable of this program as a table.
        config = {
            "python_enable_replacements": "false",
            "memory_limit": f"{memory_mib}MiB",
            "max_temp_directory_size": f"{_SPILL_FACTOR * memory_mib}MiB",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        }
        with duckdb.connect(database, config=config) as connection:
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
    if most is not None:
        rows = cursor.fetchmany(most + 1)
        return Answer(columns, tuple(rows[:most]), len(rows) > most)
    rows = []
    while some := cursor.fetchmany(_FETCHED_ROWS):
        rows += some
        if len(rows) * len(columns) > _MOST_VALUES:
            raise ConfigError(
                f"the answer has more than {_MOST_VALUES:,} values; aggregate, or add LIMIT and OFFSET",
                code="answer_too_large",
                where="--sql",
            )
    return Answer(columns, tuple(rows), False)


def _settled(path: Path) -> str:
    """Return the path without links, except for its own: a file may be in an output by several names."""
    return str(path.parent.resolve() / path.name)


def _quoted(path: Path) -> str:
    return _literal(_settled(path))


def _literal(text: str | None) -> str:
    return "NULL" if text is None else "'" + text.replace("'", "''") + "'"
