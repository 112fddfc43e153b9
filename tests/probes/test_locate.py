"""Which probe shards a path names: a published run's by its manifest, loose ones by name, never unfinished ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from manifests import RUN_HASH, publish_by_hand

from schemas.errors import ConfigError, InputError
from schemas.probes import FLOW
from tasks.probes.training.locate import find_shards

NAMES = [f"{split}-{n:05d}-of-00002.arrayrecord" for split in ("test", "train") for n in range(2)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / "out" / "runs" / RUN_HASH
    for name in [*NAMES, "rejects/input-000000.parquet"]:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("")
    return publish_by_hand(tmp_path / "out", FLOW)


def names(path: Path, split: str = "train") -> list[str]:
    return [Path(shard).name for shard in find_shards(path, split)]


def test_a_runs_shards_are_those_of_its_manifest(run: Path) -> None:
    (run / "train-00000-of-00009.arrayrecord").write_text("left behind")
    for path in (run, run.parent.parent, run.parent.parent / "latest"):
        assert names(path) == NAMES[2:] and names(path, "test") == NAMES[:2]
        assert find_shards(path, "train")[0] == str(run / NAMES[2])


def test_a_lost_shard_is_named(run: Path) -> None:
    (run / NAMES[3]).unlink()
    with pytest.raises(InputError, match="1 of 2 shards are missing; the first missing one is number 1"):
        names(run)


def test_what_is_no_published_run_is_refused(run: Path) -> None:
    output = run.parent.parent
    publish_by_hand(output, "pack-sft")
    with pytest.raises(ConfigError, match="a run of 'pack-sft', which holds no probe rows") as caught:
        names(output)
    assert caught.value.code == "other_flow"
    (run / "manifest.json").unlink()
    for path in (run, output):
        with pytest.raises(ConfigError, match="not published") as caught:
            names(path)
        assert caught.value.code == "unpublished"
    (output / "latest").unlink()
    with pytest.raises(ConfigError, match="no published run in this output folder yet"):
        names(output)


def test_files_being_written_are_left_out(tmp_path: Path) -> None:
    for name in ("a.arrayrecord", ".tmp-b.arrayrecord"):
        (tmp_path / name).write_text("")
    assert names(tmp_path) == ["a.arrayrecord"]
