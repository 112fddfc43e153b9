"""What a job of any flow says when it cannot be done."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from schemas.errors import StorageError
from schemas.run import Receipt
from tasks.run.contract import Job, do, missing_stages


class Reading(Job):
    task: ClassVar[str] = "read"


def test_a_file_of_an_earlier_step_that_is_gone_is_named(tmp_path: Path) -> None:
    job = Reading(output_dir=str(tmp_path), stage="b")

    def read(path: Path) -> Receipt:
        path.read_bytes()
        return job.receipt(())

    gone = tmp_path / "stages" / "a" / "tokens.i32"
    with pytest.raises(StorageError, match="prune") as caught:
        do(lambda _: read(gone), job)
    assert (caught.value.code, caught.value.where) == ("missing_stage", str(gone))
    with pytest.raises(FileNotFoundError):
        do(lambda _: read(tmp_path / "elsewhere"), job)


def test_a_stage_that_the_driver_misses_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="prune"), missing_stages(tmp_path):
        (tmp_path / "stages" / "a" / "selected.npy").read_bytes()
