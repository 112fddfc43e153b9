"""What train-tokenizer takes as a sample: published runs and other tools' folders, nothing that is unfinished."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import run_serially

from schemas.errors import ConfigError, GristmillError, InputError
from schemas.tokenizer import TrainTokenizerConfig
from tasks.tokenizer.identity import identify


def write_texts(path: Path, texts: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"text": texts}), path)
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output folder of sample-corpus with a published run of two shards."""
    folder = tmp_path_factory.mktemp("made")
    buckets = {"a": {"count": 10}, "b": {"count": 5}}
    for bucket in buckets:
        write_texts(folder / "corpus" / bucket / "f.parquet", [f"{bucket} {n}" for n in range(20)])
    source = {"name": "one", "source": str(folder / "corpus"), "samples": 15, "buckets": buckets}
    run_serially("sample-corpus", {"datasets": {"one": source}, "output_dir": str(folder / "out")})
    return folder / "out"


@pytest.fixture
def output(made: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(made, tmp_path / "out", symlinks=True))


def names_of(sample: Path) -> list[str]:
    """The files that the tokenizer would be trained on."""
    config = TrainTokenizerConfig.parse(
        {"output_dir": str(sample.parent / "tokenizer"), "sample": str(sample)}
    )
    return [record.path for record in identify(config).records()]


def refused(sample: Path) -> GristmillError:
    with pytest.raises(GristmillError) as caught:
        names_of(sample)
    return caught.value


def test_a_run_is_a_sample_by_all_its_names(output: Path) -> None:
    names = ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"]
    run = (output / "latest").resolve()
    copy = Path(shutil.copytree(run, output.parent / "copy"))
    assert [names_of(path) for path in (output, output / "latest", run, copy)] == [names] * 4


def test_stages_are_no_sample(output: Path) -> None:
    stage = next(path.parent for path in (output / "stages").rglob("*.parquet"))
    for path in (output / "stages", stage):
        error = refused(path)
        assert isinstance(error, ConfigError) and (error.code, error.where) == ("unpublished", str(path))
        assert "run the flow to the end, then name the output folder" in error.message


def test_a_run_that_is_not_published_is_no_sample(output: Path) -> None:
    run = (output / "latest").resolve()
    (run / "manifest.json").unlink()
    for path in (run, output / "latest", output):
        error = refused(path)
        assert (
            isinstance(error, ConfigError)
            and error.code == "unpublished"
            and "not published" in error.message
        )
    (output / "latest").unlink()
    error = refused(output)
    assert error.code == "missing_path" and "no published run in this output folder yet" in error.message


def test_a_folder_above_runs_is_no_sample(output: Path) -> None:
    for path in (output.parent, output / "runs"):
        error = refused(path)
        assert isinstance(error, ConfigError) and error.code == "run_below"


def test_a_run_of_another_flow_is_no_sample(output: Path) -> None:
    raw = {"output_dir": str(output.parent / "tok"), "sample": str(output), "vocabulary_size": 300}
    run_serially("train-tokenizer", raw)
    error = refused(output.parent / "tok")
    assert error.code == "other_flow" and "'train-tokenizer', which holds no sample" in error.message


def test_a_lost_shard_is_named(output: Path) -> None:
    lost = (output / "latest").resolve() / "train-00001-of-00002.parquet"
    lost.unlink()
    error = refused(output)
    assert isinstance(error, InputError) and (error.code, error.where) == ("missing_shard", str(lost))


def test_a_folder_of_another_tool_is_a_sample(tmp_path: Path) -> None:
    for name in ("b/2.parquet", "a.parquet", "stages/3.parquet"):
        write_texts(tmp_path / "loose" / name, ["x"])
    (tmp_path / "loose" / "manifest.json").write_text('{"made": "elsewhere"}')
    assert names_of(tmp_path / "loose") == ["a.parquet", "b/2.parquet", "stages/3.parquet"]
