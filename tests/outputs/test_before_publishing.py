"""What a run wrote is read back before it is published, once for the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from contract.flows_under_test import BuildProbeRows, PackSft, SampleCorpus
from contract.suite import Workload

from schemas.errors import IntegrityError
from tasks.run.layout import LATEST, STAGES


@pytest.fixture(params=[PackSft, SampleCorpus, BuildProbeRows], ids=lambda kind: kind.flow)
def workload(request: pytest.FixtureRequest, small_tokenizer: Path, tmp_path: Path) -> Workload:
    made: Workload = request.param()
    made.tokenizer = small_tokenizer
    made.write(tmp_path / "in")
    return made


def published(out: Path) -> list[Path]:
    """The files of stages that the run shares."""
    return [path for path in (out / STAGES).rglob("*") if path.is_file() and path.stat().st_nlink > 1]


def test_the_same_bytes_are_validated_once(workload: Workload, tmp_path: Path) -> None:
    out = tmp_path / "out"
    manifest, done = workload.mill(tmp_path / "in", out)
    stages = {stage for task, stage in done.executed if task == "validate"}
    assert stages and stages <= set(manifest.stages.values())
    for path in published(out):
        path.unlink()
    again, repaired = workload.mill(tmp_path / "in", out)
    assert again.outputs == manifest.outputs and repaired.executed
    assert "validate" not in {task for task, _ in repaired.executed}


def test_a_damaged_shard_is_not_published(workload: Workload, tmp_path: Path) -> None:
    out = tmp_path / "out"
    workload.mill(tmp_path / "in", out)
    before = (out / LATEST).readlink()
    for path in published(out):
        content = bytes(path.stat().st_size)
        path.unlink()
        path.write_bytes(content)
    for path in (out / STAGES).glob("*/receipts/validate-*.json"):
        path.unlink()
    with pytest.raises(IntegrityError) as caught:
        workload.mill(tmp_path / "in", out)
    assert str(out / STAGES) in caught.value.where or STAGES in caught.value.where
    assert (out / LATEST).readlink() == before
