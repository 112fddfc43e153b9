"""What runs are called."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from schemas.probes import BuildProbeRowsConfig
from schemas.sft import PackSftConfig
from tasks.runtime.names import task_names


@dataclass
class Job:
    label: str = ""


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ([], []),
        ([""], ["write"]),
        (["", ""], ["write 1/2", "write 2/2"]),
        (["a", "b", "a"], ["write a 1/2", "write b", "write a 2/2"]),
        (["{x}"], ["write {x}"]),
    ],
)
def test_task_names(labels: list[str], names: list[str]) -> None:
    assert task_names("write", [Job(label) for label in labels]) == names


def test_work_without_a_label() -> None:
    assert task_names("train", [object()]) == ["train"]


def test_subjects() -> None:
    datasets = [{"name": name, "path": "x"} for name in "abcde"]
    raw = {"output_dir": "o", "tokenizer": {"path": "t"}, "datasets": datasets, "pack": {"size": 4096}}
    config = PackSftConfig.parse(raw)
    assert (config.subject, config.tags) == ("a+b+c+2 4096", ("a", "b", "c", "d", "e"))
    probes = BuildProbeRowsConfig.parse({"input": ["/data/one.parquet", "/data/*"], "output_dir": "o"})
    assert probes.subject == "one.parquet+*"
