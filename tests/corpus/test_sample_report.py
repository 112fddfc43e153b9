"""What the reports of samples and tokenizers show, against their own summaries."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support import run_serially

from schemas.report import Report
from tasks import steps
from tasks.report.compose import ReportJob, compose


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Report]]:
    """A folder with the output folders `sample` and `tokenizer`, and their reports."""
    root = tmp_path_factory.mktemp("corpus")
    for bucket, rows in (("a", 50), ("b", 80)):
        (root / "in" / bucket).mkdir(parents=True)
        texts = [f"{bucket} document {i} " + "word " * (i % 60) for i in range(rows)]
        pq.write_table(pa.table({"text": texts}), root / "in" / bucket / "part.parquet")
    buckets = {"a": {"count": 60}, "b": {"count": 40}}
    datasets = {"web": {"name": "Web", "source": str(root / "in"), "buckets": buckets}}
    reports: dict[str, Report] = {}

    def catch(job: ReportJob) -> Report:
        return reports.setdefault(job.publication.flow, compose(job))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "compose", catch)
        run_serially("sample-corpus", {"output_dir": str(root / "sample"), "datasets": datasets})
        tokenizer = {"sample": str(root / "sample"), "vocabulary_size": 400, "held_out": 0.3}
        run_serially("train-tokenizer", {"output_dir": str(root / "tokenizer"), **tokenizer})
    return root, reports


def test_requested_and_got_are_those_of_the_files(built: tuple[Path, dict[str, Report]]) -> None:
    root, reports = built
    info = json.loads((root / "sample" / "latest" / "sampling_info.json").read_text())
    requested, got = reports["sample-corpus"].charts[0].series

    buckets = info["sources"]["web"]["buckets"]
    assert reports["sample-corpus"].charts[0].labels == ("web/a", "web/b")
    assert list(requested.values) == [bucket["requested"] for bucket in buckets.values()] == [60, 40]
    assert list(got.values) == [bucket["sampled"] for bucket in buckets.values()] == [50, 40]


def test_text_lengths_are_those_of_the_rows(built: tuple[Path, dict[str, Report]]) -> None:
    root, reports = built
    texts = pa.concat_tables(pq.read_table(p) for p in (root / "sample" / "latest").glob("train-*.parquet"))
    sizes = pc.binary_length(texts["text"]).to_pylist()
    expected = Counter(str(1 << (size - 1).bit_length()) for size in sizes)

    chart = reports["sample-corpus"].charts[1]

    shown = dict(zip(chart.labels, map(int, chart.series[0].values), strict=True))
    assert {label: rows for label, rows in shown.items() if rows} == dict(expected)


def test_bytes_per_token_are_those_of_the_manifest(built: tuple[Path, dict[str, Report]]) -> None:
    root, reports = built
    manifest = json.loads((root / "tokenizer" / "latest" / "manifest.json").read_text())
    chart = reports["train-tokenizer"].charts[0]

    measured = manifest["statistics"]["bytes_per_token"]
    assert list(chart.labels) == [bucket["bucket"] for bucket in measured] == ["Web/a", "Web/b"]
    assert list(chart.series[0].values) == [bucket["bytes_per_token"] for bucket in measured]


def test_nothing_was_left_out(built: tuple[Path, dict[str, Report]]) -> None:
    assert [report.remarks for report in built[1].values()] == [(), ()]
