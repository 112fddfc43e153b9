"""Prove contents: the records contain the measurements of the source, each the same number of times.

DuckDB reads the source itself, leaves out the rejected rows by file and row number, and subtracts the records from it
as multisets; it shares no code with the writing of records. It spills to a temporary folder, so any size fits. Text
files, and Parquet whose times are numbers or whose columns are text, reach DuckDB through `plain_source`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from schemas.errors import GristmillError, WorkError
from schemas.probes import BuildProbeRowsConfig, MeasurementFormat
from tasks.probes.identity import format_of
from tasks.probes.plain_source import PLAIN_SCHEMA, plain_batches
from tasks.probes.rows.pieces import Reading
from tasks.run.identity import Identity, Source
from tasks.storage.names import link_target, make_link, scratch_folder
from tasks.storage.parquet import open_parquet, parquet_faults, read_table

if TYPE_CHECKING:
    import duckdb

_SCHEMA = pa.schema(
    [
        ("event_time", pa.int64()),
        ("src_addr", pa.string()),
        ("dst_addr", pa.string()),
        ("ip_version", pa.int8()),
        ("rtt", pa.float32()),
    ]
)
_BATCH_ROWS = 100_000

_SOURCE = """
SELECT {number} AS file, file_row_number AS row, 0 AS reply, {time} AS event_time,
       CAST({src} AS VARCHAR) AS src_addr, CAST({dst} AS VARCHAR) AS dst_addr,
       CAST(coalesce({version}, CASE WHEN contains({src}, ':') THEN 6 ELSE 4 END) AS INTEGER) AS ip_version,
       CAST({rtt} AS FLOAT) AS rtt
FROM read_parquet('{path}', file_row_number = true)
"""
# Types that `_SOURCE` reads; others are read by `plain_source`.
_TIMES = ("TIMESTAMP",)
_NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")
_FLOATS = ("FLOAT", "DOUBLE", "DECIMAL")

_DIFFERENCE = """
WITH usable AS (
    SELECT {distinct} event_time, src_addr, dst_addr, ip_version, rtt
    FROM source ANTI JOIN rejected USING (file, row, reply)
)
SELECT event_time, src_addr, dst_addr, ip_version, rtt, sum(times) AS times
FROM (
    SELECT *, 1 AS times FROM usable
    UNION ALL
    SELECT event_time, src_addr, dst_addr, CAST(ip_version AS INTEGER), rtt, -1 FROM records
)
GROUP BY ALL HAVING sum(times) <> 0
"""


def compare(
    config: BuildProbeRowsConfig,
    identity: Identity[Source],
    rejects: Sequence[Path],
    records: Iterable[tuple[str, pa.RecordBatch]],
) -> list[str]:
    """Describe the differences between the source and the records; return `[]` if there are none.

    Args:
        config: of the run: how the source is read, and whether equal rows of it count once.
        rejects: the run's reject files.
        records: for each record its probe and its measurements.

    Raises:
        WorkError: `proof`: DuckDB cannot read the source.
        GristmillError: a file of the source or a record cannot be read.
    """
    # Imported here, because runs import this module and do not need DuckDB.
    import duckdb

    failed: list[GristmillError] = []
    reader = pa.RecordBatchReader.from_batches(_SCHEMA, _noting(_blocks(records), failed))
    with scratch_folder("gristmill-") as scratch, duckdb.connect() as connection:
        links = _linked(config, identity, scratch)
        try:
            connection.execute(
                f"SET temp_directory = '{scratch}/spill'; SET preserve_insertion_order = false"
            )
            parts = {
                number: query
                for number, link in links.items()
                if (query := _parquet_query(connection, number, link, Reading.of(config))) is not None
            }
            queries = [*parts.values()]
            rest = [number for number in range(len(identity.sources[0].files)) if number not in parts]
            if rest:
                plain = _noting(plain_batches(config, identity.sources[0].files, rest), failed)
                connection.register("plain", pa.RecordBatchReader.from_batches(PLAIN_SCHEMA, plain))
                queries.append("SELECT * FROM plain")
            connection.execute(f"CREATE TEMP VIEW source AS {' UNION ALL '.join(queries)}")
            connection.execute("CREATE TEMP TABLE rejected (file INTEGER, row BIGINT, reply INTEGER)")
            _note_rejected(connection, config, identity, rejects)
            connection.register("records", reader)
            query = _DIFFERENCE.format(distinct="DISTINCT" if config.deduplicate else "")
            connection.execute(f"CREATE TEMP TABLE difference AS {query}")
            return list(_described(connection))
        except duckdb.Error as error:
            if failed:
                raise failed[0] from error
            names = [str(identity.sources[0].files[number].path) for number in links]
            told = _named(str(error), dict(zip(links.values(), names, strict=True)))
            raise WorkError(f"DuckDB cannot compare the source: {told}", code="proof") from error


def _named(told: str, names: dict[Path, str]) -> str:
    """Return an error of DuckDB with the name of the file in it, if one cannot be read."""
    import duckdb

    for link, name in names.items():
        told = told.replace(str(link), name)
    if any(name in told for name in names.values()):
        return told
    for link, name in names.items():
        try:
            with duckdb.connect() as connection:
                connection.execute(f"SELECT max(hash(COLUMNS(*))) FROM read_parquet('{link}')")  # noqa: S608
        except duckdb.Error:
            return f"{told} ({name})"
    return told


def _linked(config: BuildProbeRowsConfig, identity: Identity[Source], scratch: Path) -> dict[int, Path]:
    """Link the Parquet files, by their number, under names that DuckDB does not read as globs."""
    links = {}
    for number, file in enumerate(identity.sources[0].files):
        if format_of(file.path.name, config.format) is MeasurementFormat.PARQUET:
            links[number] = scratch / f"{number}.parquet"
            make_link(links[number], file.path.absolute())
    return links


def _parquet_query(
    connection: duckdb.DuckDBPyConnection, number: int, path: Path, reading: Reading
) -> str | None:
    """Return the SQL that reads a file, or `None` for types or names that it cannot read."""
    described = connection.execute(f"DESCRIBE SELECT * FROM read_parquet('{path}')").fetchall()  # noqa: S608
    types = {name: kind for name, kind, *_ in described}
    with parquet_faults(link_target(path) or str(path)), open_parquet(path) as file:
        # DuckDB gives other names to columns whose names differ only in case.
        if [*types] != file.schema_arrow.names:
            return None
    time, src, dst, version, rtt = (name if name in types else None for name in reading.columns)
    if (
        not types[str(time)].startswith(_TIMES)
        or not types[str(rtt)].startswith(_NUMBERS + _FLOATS)
        or (version is not None and not types[version].startswith(_NUMBERS))
    ):
        return None
    # DuckDB's epoch_us rounds nanoseconds to the nearest.
    micros = "epoch_ns({}) // 1000" if "NS" in types[str(time)] else "epoch_us({})"
    return _SOURCE.format(
        number=number,
        path=path,
        time=micros.format(_quoted(time)),
        src=_quoted(src),
        dst=_quoted(dst),
        version=_quoted(version),
        rtt=_quoted(rtt),
    )


def _quoted(name: str | None) -> str:
    return "NULL" if name is None else '"' + name.replace('"', '""') + '"'


def _note_rejected(
    connection: duckdb.DuckDBPyConnection,
    config: BuildProbeRowsConfig,
    identity: Identity[Source],
    rejects: Sequence[Path],
) -> None:
    # Only results of RIPE Atlas have several rows of one number; the detail says which.
    reply = "0"
    if config.format is MeasurementFormat.ATLAS:
        reply = r"coalesce(TRY_CAST(regexp_extract(detail, '^reply (\d+): ', 1) AS INTEGER), 0)"
    numbers = pa.table(
        {
            "number": pa.array(range(len(identity.sources[0].files)), pa.int32()),
            "name": [file.name for file in identity.sources[0].files],
        }
    )
    connection.register("numbers", numbers)
    for path in rejects:
        with parquet_faults(str(path)):
            connection.register("listed", read_table(path, ["source_file", "row", "detail"]))
        connection.execute(
            f"INSERT INTO rejected SELECT number, row, {reply} FROM listed JOIN numbers ON name = source_file"  # noqa: S608
        )


def _blocks(records: Iterable[tuple[str, pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Yield measurements with their source address, several records in each batch."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for address, batch in records:
        time, dst, version, rtt = batch.columns
        source = pa.repeat(pa.scalar(address, pa.string()), batch.num_rows)
        held.append(pa.record_batch([time.view(pa.int64()), source, dst, version, rtt], schema=_SCHEMA))
        rows += batch.num_rows
        if rows >= _BATCH_ROWS:
            yield from pa.Table.from_batches(held).combine_chunks().to_batches()
            held, rows = [], 0
    yield from held


def _noting(batches: Iterator[pa.RecordBatch], failed: list[GristmillError]) -> Iterator[pa.RecordBatch]:
    """Yield the batches, and note the error that ends them: DuckDB makes text of it, with its traceback."""
    try:
        yield from batches
    except GristmillError as error:
        failed.append(error)
        raise


def _described(connection: duckdb.DuckDBPyConnection) -> Iterator[str]:
    for sign, what in (
        (">", "of the source are not in any record"),
        ("<", "of the records are not in the source"),
    ):
        totals = connection.execute(
            f"SELECT sum(abs(times)), any_value(src_addr), any_value(event_time) "  # noqa: S608 - our own text
            f"FROM difference WHERE times {sign} 0"
        ).fetchone()
        if totals is not None and totals[0]:
            yield f"{totals[0]} measurements {what}, for example one of {totals[1]} at {totals[2]} microseconds"
