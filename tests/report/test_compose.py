"""A report never stands in the way of the data: what cannot be told is left out, and said to be."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from support import chat, config_of, mill_serially, published_digests, write_jsonl

from schemas.report import Chart, Column, Fact, Sample, Series, Table
from schemas.run import FileRecord, InputRecord, RowLedger
from tasks import steps
from tasks.outputs.validate import validate_path
from tasks.report.compose import ReportJob, compose
from tasks.report.reuse import Reuse
from tasks.report.sections import lineage
from tasks.run.publish import Publication
from tasks.sft.report import PackReport

CHART = Chart("A plot", "What it shows.", "x", ("a",), (Series("s", (1.0,), ("1",)),))


@dataclass(frozen=True)
class Told:
    """Details that fail where they are told to."""

    fails: tuple[str, ...] = ()
    subject: str = "something · 1"
    steps: tuple[str, ...] = ("make",)

    def _give(self, name: str, what: Any) -> Any:
        if name in self.fails:
            raise ZeroDivisionError(f"no {name} today")
        return (what,)

    def facts(self) -> tuple[Fact, ...]:
        return self._give("facts", Fact("rows", "1"))  # type: ignore[no-any-return]

    def tables(self) -> tuple[Table, ...]:
        return self._give("tables", Table("Buckets", (), ()))  # type: ignore[no-any-return]

    def charts(self) -> tuple[Chart, ...]:
        return self._give("charts", CHART)  # type: ignore[no-any-return]

    def samples(self) -> tuple[Sample, ...]:
        return self._give("samples", Sample("a bin", ()))  # type: ignore[no-any-return]


def publication(root: Path, **changes: Any) -> Publication:
    made = Publication(
        flow="pack-sft",
        published={},
        output_dir=str(root),
        run_hash="0" * 16,
        links={},
        ledger=RowLedger(rows_in=3, rows_used=3),
        statistics={},
        stages={"make/a/000000": "1" * 16},
        config="{}",
        inputs=(InputRecord(source="a", path="a.jsonl", bytes=7, digest="sha256:" + "ab" * 32),),
        seen={},
        documents={"blend.json": b"{}"},
    )
    return replace(made, **changes)


def test_what_every_report_says(tmp_path: Path) -> None:
    reuse = Reuse({"make": [2, 5]})

    report = compose(ReportJob(publication(tmp_path), Told(), reuse))

    assert report.ledger.rows[:2] == (("read", "3", "100%"), ("used", "3", "100%"))
    assert report.reuse is not None and report.reuse.rows == (("make", "7", "2", "5"),)
    assert report.outputs.rows == (("blend.json", "2 B"),)
    assert report.inputs.rows == (("a", "a.jsonl", "7 B", "ab" * 6),)
    assert report.drift is None and report.rejects == () and report.remarks == ()
    assert [[node.label for node in layer] for layer in report.lineage.layers] == [
        ["inputs"],
        ["make a"],
        ["run"],
    ]


@pytest.mark.parametrize("part", ["facts", "tables", "charts", "samples"])
def test_a_part_that_fails_is_left_out_and_named(
    part: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = compose(ReportJob(publication(tmp_path), Told()))
    with caplog.at_level(logging.WARNING, "gristmill.report"):
        report = compose(ReportJob(publication(tmp_path), Told((part,))))

    field = part
    assert getattr(report, field) == ()
    assert replace(report, made="", remarks=(), **{field: getattr(whole, field)}) == replace(whole, made="")
    [remark] = report.remarks
    assert f"ZeroDivisionError: no {part} today" in remark
    assert "the report leaves out" in caplog.text


def test_where_rows_went_is_drawn_if_any_were_left_out(tmp_path: Path) -> None:
    ledger = RowLedger(rows_in=10, rows_used=4, duplicates=1, filtered=3, rejected={"bad": 2})

    chart = compose(ReportJob(publication(tmp_path, ledger=ledger), Told())).charts[-1]

    assert chart.title == "Where rows went"
    assert dict(zip(chart.labels, chart.series[0].values, strict=True)) == {
        "used": 4,
        "filtered": 3,
        "rejected: bad": 2,
        "duplicates": 1,
    }
    assert sum(chart.series[0].values) == ledger.rows_in
    assert compose(ReportJob(publication(tmp_path), Told())).charts == (CHART,)


def test_a_table_of_thousands_is_cut_and_says_so(tmp_path: Path) -> None:
    class Many(Told):
        def tables(self) -> tuple[Table, ...]:
            return (Table("Buckets", (Column("bucket"),), tuple((str(i),) for i in range(5_000))),)

    [table] = compose(ReportJob(publication(tmp_path), Many())).tables

    assert [row[0] for row in table.rows] == [str(i) for i in range(100)]
    assert "4,900 more" in table.note


def test_reject_files_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"no parquet")
    record = FileRecord(path="bad.parquet", bytes=10, sha256="0" * 64)
    ledger = RowLedger(rows_in=3, rows_used=2, rejected={"bad": 1})

    report = compose(
        ReportJob(publication(tmp_path, ledger=ledger, links={"rejects/a.parquet": record}), Told())
    )

    assert report.rejects == () and len(report.remarks) == 1
    assert report.ledger.rows[-1] == ("rejected", "1", "33.3%")


def test_a_report_that_fails_altogether_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "gristmill.report"):
        assert steps.report.fn(ReportJob(publication(tmp_path, stages=None), Told())) is None

    assert "the run continues with no report" in caplog.text


@pytest.mark.parametrize("broken", ["charts", "render_page"])
def test_a_run_is_published_whatever_its_report_does(
    broken: str, small_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [chat(f"ask {i}", f"answer {i}") for i in range(20)])
    whole, _ = mill_serially(config_of(tmp_path / "whole", source, small_tokenizer))

    def fail(*arguments: object) -> None:
        raise MemoryError("no room to draw")

    if broken == "charts":
        monkeypatch.setattr(PackReport, "charts", fail)
    else:
        monkeypatch.setattr("tasks.steps.render_page", fail)
    manifest, _ = mill_serially(config_of(tmp_path / "out", source, small_tokenizer))

    page = tmp_path / "out" / "latest" / "report.html"
    assert manifest.outputs == whole.outputs and manifest.statistics == whole.statistics
    assert published_digests(tmp_path / "out" / "latest") == published_digests(tmp_path / "whole" / "latest")
    assert validate_path(tmp_path / "out").ok
    assert page.exists() is (broken == "charts")
    if broken == "charts":
        assert "the plots could not be made: MemoryError: no room to draw" in page.read_text()


def test_lineage_joins_what_belongs_together() -> None:
    stages = {
        "tokenize/a/000000": "1",
        "tokenize/a/000001": "2",
        "tokenize/b/000000": "3",
        "plan/a/train": "4",
        "plan/b/train": "5",
        "write/a/train": "6",
        "write/b/train": "7",
    }

    made = lineage(stages, ("tokenize", "plan", "write"), (), "run")

    labels = [[f"{node.label} {node.detail}" for node in layer] for layer in made.layers]
    assert labels == [
        ["inputs 0 files"],
        ["tokenize a 2 tasks", "tokenize b 3"],
        ["plan a/train 4", "plan b/train 5"],
        ["write a/train 6", "write b/train 7"],
        ["run run"],
    ]
    assert set(made.edges) == {
        ((0, 0), (1, 0)),
        ((0, 0), (1, 1)),
        ((1, 0), (2, 0)),
        ((1, 1), (2, 1)),
        ((2, 0), (3, 0)),
        ((2, 1), (3, 1)),
        ((3, 0), (4, 0)),
        ((3, 1), (4, 0)),
    }


def test_many_nodes_become_one() -> None:
    stages = {f"write/bucket {number}/{part:06d}": "x" for number in range(20) for part in range(3)}

    made = lineage(stages, ("select", "write"), (), "run")

    assert [[node.label for node in layer] for layer in made.layers] == [["inputs"], ["write"], ["run"]]
    assert made.layers[1][0].detail == "60 tasks"
