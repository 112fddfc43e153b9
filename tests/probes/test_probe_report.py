"""What the report of a probe rows run shows, counted again from the source and by the loader."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pytest
from measurements import build_serially, config_of, random_table

from schemas.probes import TRAIN
from schemas.report import Report
from tasks import steps
from tasks.probes.training.loader import build_probe_dataset
from tasks.report.compose import ReportJob, compose


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path]:
    """The report of a run, and the run's output folder."""
    import pyarrow.parquet as pq

    root = tmp_path_factory.mktemp("probes")
    pq.write_table(random_table(np.random.default_rng(3), 20_000, 200), root / "in.parquet")
    caught: list[Report] = []

    def catch(job: ReportJob) -> Report:
        caught.append(compose(job))
        return caught[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "compose", catch)
        build_serially(config_of(root / "in.parquet", root / "out"))
    return caught[0], root / "out"


def test_probes_are_counted_by_their_measurements(built: tuple[Report, Path]) -> None:
    report, output = built
    chart = report.charts[0]
    rejects = output / "latest" / "rejects" / "*.parquet"
    query = f"""
        WITH kept AS (
            SELECT src_addr, count(*) AS n
            FROM read_parquet('{output.parent / "in.parquet"}', file_row_number = true) AS t
            WHERE NOT EXISTS (SELECT 1 FROM read_parquet('{rejects}') AS r WHERE r.row = t.file_row_number)
            GROUP BY src_addr
        )
        SELECT cast(pow(2, ceil(log2(n))) AS bigint) AS up_to, count(*) FROM kept GROUP BY up_to ORDER BY up_to
    """  # noqa: S608
    expected = dict(duckdb.sql(query).fetchall())

    shown = {
        int(label): sum(int(series.values[place]) for series in chart.series)
        for place, label in enumerate(label.replace("Ki", "000") for label in chart.labels)
        if "000" not in label
    }
    assert {up_to: probes for up_to, probes in shown.items() if probes} == {
        up_to: probes for up_to, probes in expected.items() if up_to < 1024
    }
    assert sum(sum(series.values) for series in chart.series) == sum(expected.values())
    assert [series.name for series in chart.series] == ["train", "test"]


def test_padding_is_what_the_loader_leaves(built: tuple[Report, Path]) -> None:
    report, output = built
    packed, single = report.charts[1].series[0].values

    for told, pack in ((packed, True), (single, False)):
        crops = build_probe_dataset(str(output), batch_size=None, seed=1, pack=pack, split=TRAIN)
        found = float(np.mean([np.mean(crop["inputs_segmentation"] == 0) for crop in crops]))
        # Other draws of the same records.
        assert told == pytest.approx(found, abs=0.05)
    assert packed < 0.06 < 0.4 < single


def test_nothing_was_left_out(built: tuple[Report, Path]) -> None:
    assert built[0].remarks == ()
