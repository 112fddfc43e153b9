"""One SELECT over the tables it is given, numbered rows, and no way to anything else."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas.errors import ConfigError
from tasks.outputs.found import Place
from tasks.outputs.query import Limits, parquet_view, run_query


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Names that a careless statement would trip over; the second file has a column more."""
    paths = [tmp_path / "it's.parquet", tmp_path / "two [1].parquet"]
    pq.write_table(pa.table({"value": [10, 11]}), paths[0])
    pq.write_table(pa.table({"value": [20], "more": ["x"]}), paths[1])
    return paths


@pytest.mark.parametrize(
    ("table", "number"),
    [("bins", "bin"), ("documents", "document"), ("rejects", "reject"), ("others", "number")],
)
def test_rows_are_numbered_by_file_under_the_name_of_the_table(
    table: str, number: str, files: list[Path]
) -> None:
    sql = f"SELECT shard, {number}, value FROM {table} ORDER BY value"  # noqa: S608 - names of this test
    answer = run_query(sql, {table: files}, {})
    columns = run_query(f"FROM {table} LIMIT 0", {table: files}, {}).columns
    assert columns[-4:] == ("shard", number, "value", "more") and ("dataset" in columns) == (
        table in ("bins", "rejects")
    )
    assert answer.columns == ("shard", number, "value")
    assert answer.rows == (("it's.parquet", 0, 10), ("it's.parquet", 1, 11), ("two [1].parquet", 0, 20))
    assert not answer.more


def test_columns_are_united_by_name(files: list[Path]) -> None:
    assert run_query("SELECT more FROM t ORDER BY value", {"t": files}, {}).rows == ((None,), (None,), ("x",))


def test_batches_are_a_table_too(files: list[Path]) -> None:
    stream = pa.table({"value": [10, 20], "name": ["ten", "twenty"]}).to_reader()
    sql = "SELECT name FROM t JOIN names USING (value) ORDER BY value"
    assert run_query(sql, {"t": files}, {"names": stream}).rows == (("ten",), ("twenty",))


@pytest.mark.parametrize(
    ("most", "rows", "more"), [(None, 5, False), (5, 5, False), (4, 4, True), (0, 0, True)]
)
def test_an_answer_has_at_most_so_many_rows(most: int | None, rows: int, more: bool) -> None:
    answer = run_query("FROM range(5)", {}, {}, most)
    assert (len(answer.rows), answer.more) == (rows, more)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_parquet('{other}')",
        "FROM '{other}'",
        "COPY t TO '{other}.csv'",
        "CREATE TABLE x AS SELECT 1",
        "DROP VIEW t",
        "SET enable_external_access = true",
        "SELECT 1; DROP VIEW t",
        "PRAGMA database_list",
        "",
    ],
)
def test_what_does_not_select_or_looks_elsewhere_is_refused(
    sql: str, files: list[Path], tmp_path: Path
) -> None:
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"secret": [1]}), other)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ConfigError) as caught:
        run_query(sql.format(other=other), {"t": files}, {})
    assert (caught.value.code, caught.value.where) == ("bad_query", "--sql")
    assert sorted(tmp_path.iterdir()) == before


def test_a_mistake_is_told_with_the_tables_there_are(files: list[Path]) -> None:
    with pytest.raises(ConfigError, match=r"does not exist.*; tables: names, t$"):
        run_query("SELECT * FROM bins", {"t": files}, {"names": pa.table({"a": [1]}).to_reader()})


def test_the_view_quotes_names(tmp_path: Path) -> None:
    sql = parquet_view({tmp_path / "it's.parquet": Place(None, None, "it's.parquet", "it's.parquet")}, "bin")
    assert f"'{tmp_path.resolve()}/it''s.parquet'" in sql and 'AS "bin"' in sql


def test_rows_come_in_the_order_of_the_files_without_order_by(tmp_path: Path) -> None:
    """As plain pyarrow reads them one after the other, however many threads there are, each time."""
    paths = [tmp_path / f"{(n * 7) % 30:02}.parquet" for n in range(30)]
    wanted = []
    for n, path in enumerate(paths):
        pq.write_table(pa.table({"value": list(range(n % 5 + 1))}), path)
        wanted += [(path.name, row) for row in range(pq.read_metadata(path).num_rows)]
    for sql in ("SELECT shard, bin FROM bins", "SELECT shard, value FROM bins"):
        for _ in range(20):
            assert list(run_query(sql, {"bins": paths}, {}).rows) == wanted
    assert run_query("SELECT bin FROM bins LIMIT 4", {"bins": paths}, {}).rows == ((0,), (0,), (1,), (0,))


def test_a_column_of_the_data_keeps_its_name(tmp_path: Path) -> None:
    table = pa.table(
        {"Path": ["theirs"], "split": ["dev"], "bin": [7], "document": [8], "shard_split": ["x"]}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    files = [tmp_path / "a.parquet"]
    sql = "SELECT path, split, bin, shard_split, shard_path, shard_shard_split, shard, shard_bin FROM bins"
    [row] = run_query(sql, {"bins": files}, {}).rows
    assert row == ("theirs", "dev", 7, "x", "a.parquet", None, "a.parquet", 0)
    answer = run_query("FROM documents", {"documents": files}, {})
    assert answer.columns[:4] == ("shard_shard_split", "shard_path", "shard", "shard_document")
    assert answer.columns[4:] == tuple(table.column_names)
    assert answer.rows[0][4:] == tuple(table.to_pylist()[0].values())


SLOW = (
    "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE (a.range * b.range) % 7 = hash(a.range)"
)


def test_a_query_ends_when_its_time_is_up(files: list[Path]) -> None:
    started = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        run_query(SLOW, {"t": files}, {}, limits=Limits(timeout_s=0.3))
    assert (caught.value.code, caught.value.where) == ("query_timeout", "--sql")
    assert "0.3 s" in caught.value.message and time.monotonic() - started < 20


def test_ctrl_c_ends_a_query_at_once() -> None:
    code = (
        "import os, signal, threading\n"
        "import duckdb\n"
        "from tasks.outputs.query import run_query\n"
        "threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\n"
        f"try: run_query({SLOW!r}, {{}}, {{}})\n"
        "except KeyboardInterrupt: print('interrupted')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


# Raises KeyboardInterrupt at the first line of the waiting, then at the second, and so on, until a query has come so
# far that it is out of time.
AT_EVERY_LINE = f"""
import sys, threading
from schemas.errors import ConfigError
from tasks.outputs import query

def interrupt_at(number):
    seen, late = 0, False
    def trace(frame, event, what):
        nonlocal seen, late
        if frame.f_code is not query._in_time.__code__:
            return None
        late |= event == "exception" and what[0] is ConfigError
        seen += event == "line" and not late
        if seen == number and not late:
            raise KeyboardInterrupt
        return trace
    sys.settrace(trace)
    try:
        query.run_query({SLOW!r}, {{}}, {{}}, limits=query.Limits(timeout_s=0.1))
    except KeyboardInterrupt:
        return True
    except ConfigError:
        return False
    finally:
        sys.settrace(None)

number = 1
while interrupt_at(number):
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and thread.ident is not None:
            thread.join(10)
            assert not thread.is_alive(), number
    number += 1
print(number)
"""


def test_ctrl_c_ends_a_query_at_any_moment() -> None:
    done = subprocess.run([sys.executable, "-c", AT_EVERY_LINE], capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert int(done.stdout) > 5


def test_copying_the_tables_needs_memory_too(files: list[Path]) -> None:
    rows = pa.table({"value": range(100_000)})
    with pytest.raises(ConfigError) as caught:
        run_query("FROM names", {}, {"names": rows.to_reader(1000)}, limits=Limits(memory_mib=1))
    assert caught.value.code == "query_memory"


def test_copying_the_tables_counts_too(files: list[Path]) -> None:
    def endless() -> Iterator[pa.RecordBatch]:
        while True:
            yield pa.record_batch({"value": range(1000)})

    stream = pa.RecordBatchReader.from_batches(pa.schema([("value", pa.int64())]), endless())
    with pytest.raises(ConfigError) as caught:
        run_query("FROM names", {"t": files}, {"names": stream}, limits=Limits(timeout_s=0.3))
    assert caught.value.code == "query_timeout"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT list(range) FROM range(100000000)",
        "SELECT repeat('x', 100000000) || r.range AS x FROM range(9) r",
    ],
)
def test_a_query_ends_when_it_needs_too_much_memory(files: list[Path], sql: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_query(sql, {"t": files}, {}, limits=Limits(memory_mib=50))
    assert caught.value.code == "query_memory"
    assert "50 MiB" in caught.value.message


def test_an_answer_is_bounded(files: list[Path]) -> None:
    with pytest.raises(ConfigError) as caught:
        run_query("SELECT 1, 2, 3, 4, 5 FROM range(10000000)", {"t": files}, {})
    assert caught.value.code == "answer_too_large"


@pytest.mark.parametrize(
    "sql",
    [
        "COPY (SELECT 1) TO '{outside}'",
        "FROM read_text('{outside}')",
        "FROM read_blob('/etc/passwd')",
        "FROM read_csv('/etc/passwd')",
        "FROM glob('/etc/*')",
        "FROM '{outside}'",
        "ATTACH '{outside}.db' AS other",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET lock_configuration = false",
        "PRAGMA enable_external_access",
        "RESET enable_external_access",
        "SET memory_limit = '1TB'",
        "EXPORT DATABASE '{outside}'",
        "CREATE TABLE x AS SELECT 1",
        "CREATE MACRO m() AS 1",
        "CALL pragma_version()",
        "SELECT 1; COPY (SELECT 1) TO '{outside}'",
        "FROM read_parquet('https://127.0.0.1:1/x.parquet')",
        "FROM read_json('/proc/self/environ')",
        "FROM sniff_csv('/etc/passwd')",
        "FROM parquet_metadata('{outside}')",
        "FROM query('COPY (SELECT 1) TO ''{outside}''')",
        "FROM sqlite_scan('{outside}', 'x')",
        "SELECT getenv('HOME')",
        "WITH x AS (INSERT INTO t VALUES (1) RETURNING *) FROM x",
    ],
)
def test_a_query_reaches_nothing_outside(files: list[Path], tmp_path: Path, sql: str) -> None:
    outside = tmp_path / "outside"
    outside.write_text("secret")
    with pytest.raises(ConfigError) as caught:
        run_query(sql.format(outside=outside), {"t": files}, {})
    assert caught.value.code == "bad_query"
    assert {path.name for path in tmp_path.iterdir()} == {"it's.parquet", "two [1].parquet", "outside"}
    assert outside.read_text() == "secret"
