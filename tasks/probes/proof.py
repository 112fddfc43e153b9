"""Prove contents: the records contain the measurements of the source, each the same number of times.

DuckDB reads the source itself, leaves out the rejected rows by file and row number, and subtracts the records from it
as multisets; it shares no code with the writing of records. It spills to a temporary folder, so any size fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from schemas.errors import WorkError
from tasks.run.identity import Identity, Source
from tasks.storage.names import make_link, scratch_folder
from tasks.storage.parquet import read_table

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
SELECT {number} AS file, file_row_number AS row, {time} AS event_time,
       CAST(src_addr AS VARCHAR) AS src_addr, CAST(dst_addr AS VARCHAR) AS dst_addr,
       CAST(coalesce(ip_version, CASE WHEN contains(src_addr, ':') THEN 6 ELSE 4 END) AS INTEGER) AS ip_version,
       CAST(rtt AS FLOAT) AS rtt
FROM read_parquet('{path}', file_row_number = true)
"""

_DIFFERENCE = """
WITH usable AS (
    SELECT {distinct} event_time, src_addr, dst_addr, ip_version, rtt
    FROM source ANTI JOIN rejected USING (file, row)
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
    identity: Identity[Source],
    rejects: Sequence[Path],
    records: Iterable[tuple[str, pa.RecordBatch]],
    deduplicated: bool,
) -> list[str]:
    """Describe the differences between the source and the records; return `[]` if there are none.

    Args:
        rejects: the run's reject files.
        records: for each record its probe and its measurements.
        deduplicated: whether equal rows of the source count once.

    Raises:
        WorkError: DuckDB cannot read the source.
    """
    # Imported here, because runs import this module and do not need DuckDB.
    import duckdb

    reader = pa.RecordBatchReader.from_batches(_SCHEMA, _blocks(records))
    with scratch_folder("gristmill-") as scratch, duckdb.connect() as connection:
        links = _linked(identity, scratch)
        connection.execute(f"SET temp_directory = '{scratch}/spill'; SET preserve_insertion_order = false")
        try:
            parts = [
                _SOURCE.format(number=number, path=link, time=_microseconds(connection, link))
                for number, link in enumerate(links)
            ]
            connection.execute(f"CREATE TEMP VIEW source AS {' UNION ALL '.join(parts)}")
            connection.execute("CREATE TEMP TABLE rejected (file INTEGER, row BIGINT)")
            _note_rejected(connection, identity, rejects)
            connection.register("records", reader)
            query = _DIFFERENCE.format(distinct="DISTINCT" if deduplicated else "")
            connection.execute(f"CREATE TEMP TABLE difference AS {query}")
            return list(_described(connection))
        except duckdb.Error as error:
            raise WorkError(f"DuckDB cannot compare the source: {error}", code="proof") from error


def _linked(identity: Identity[Source], scratch: Path) -> list[Path]:
    """Link the input files under names that DuckDB does not read as globs."""
    links = []
    for number, file in enumerate(identity.sources[0].files):
        links.append(scratch / f"{number}.parquet")
        make_link(links[-1], file.path.absolute())
    return links


def _microseconds(connection: duckdb.DuckDBPyConnection, path: Path) -> str:
    """Return the SQL for the microseconds since 1970, rounded down."""
    described = connection.execute(f"DESCRIBE SELECT event_time FROM read_parquet('{path}')").fetchall()  # noqa: S608
    # DuckDB's epoch_us rounds nanoseconds to the nearest.
    return "epoch_ns(event_time) // 1000" if "NS" in described[0][1] else "epoch_us(event_time)"


def _note_rejected(
    connection: duckdb.DuckDBPyConnection, identity: Identity[Source], rejects: Sequence[Path]
) -> None:
    numbers = pa.table(
        {
            "number": pa.array(range(len(identity.sources[0].files)), pa.int32()),
            "name": [file.name for file in identity.sources[0].files],
        }
    )
    connection.register("numbers", numbers)
    for path in rejects:
        connection.register("listed", read_table(path, ["source_file", "row"]))
        connection.execute(
            "INSERT INTO rejected SELECT number, row FROM listed JOIN numbers ON name = source_file"
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
