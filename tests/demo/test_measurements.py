"""The demonstration's measurement set is what its documentation says."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from tasks.demo.measurements import PROBES, ROWS, write_measurements


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "measurements"
    assert write_measurements(path) == ROWS
    return path


def test_the_same_bytes_every_time(folder: Path, tmp_path: Path) -> None:
    write_measurements(tmp_path)
    first, again = (
        {path.name: path.read_bytes() for path in where.iterdir()} for where in (folder, tmp_path)
    )
    assert len(first) == 2 and again == first


def test_the_documented_properties(folder: Path) -> None:
    measured = (
        f"(SELECT *, contains(src_addr, ':') = contains(dst_addr, ':') AS same FROM '{folder}/*.parquet')"  # noqa: S608
    )
    with duckdb.connect() as connection:
        [found] = connection.execute(f"""
            SELECT count(*), count(DISTINCT src_addr), avg(CAST(contains(src_addr, ':') AS INT)),
                   avg(CAST(rtt < 0 AS INT)), count_if(rtt IS NULL), count_if(isnan(rtt)),
                   count_if(ip_version IS NULL), bool_and(same),
                   max(event_time) - min(event_time) < INTERVAL 30 DAY
            FROM {measured}
        """).fetchall()  # noqa: S608
        rows = f"SELECT count(*) AS n FROM {measured} GROUP BY src_addr ORDER BY n"  # noqa: S608
        sizes = [count for (count,) in connection.execute(rows).fetchall()]
    count, probes, six, failed, null_rtts, nan_rtts, null_versions, one_family, in_span = found
    assert (count, probes) == (ROWS, PROBES)
    assert 0.3 < six < 0.5 and 0.07 < failed < 0.09
    assert (null_rtts, nan_rtts, null_versions) == (80, 80, 40)
    assert one_family and in_span
    assert 0.1 < sizes[-1] / ROWS < 0.13
    assert sizes[len(sizes) // 2] < ROWS / PROBES
