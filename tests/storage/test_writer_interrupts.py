"""An interrupt is an interrupt, wherever it comes while a file is written; Arrow could take it for another error."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from schemas.sft import StorageConfig
from tasks.corpus.write import _SampleWriter
from tasks.run.rejects import RejectWriter
from tasks.sft.shards.shard import ShardMetadata
from tasks.sft.shards.writers import open_writer
from tasks.storage.atomic import AtomicFile

# What Arrow calls, whether it is a method or a property.
_CODE = {
    getattr(member, "fget", member).__code__
    for name, member in vars(AtomicFile).items()
    if name in ("write", "tell", "flush", "close", "closed")
}


def _rejects(folder: Path) -> None:
    with RejectWriter(folder / "rejects.parquet") as writer:
        writer.add("rows.jsonl", 3, "not_json", "a detail")
        writer.finish(folder)


def _bins(folder: Path) -> None:
    with open_writer(folder / "shard.parquet", StorageConfig(), ShardMetadata(version=None), 2, 3) as writer:
        for number in range(2):
            writer.write_bin(number, [1, 2, 3], [1, 1, 0], [0])
        writer.finalize()


def _documents(folder: Path) -> None:
    job: Any = SimpleNamespace(
        dataset="web", bucket="1", compression=SimpleNamespace(value="zstd"), compression_level=1
    )
    with _SampleWriter(folder / "part.parquet", job) as writer:
        for _ in range(2):
            writer.add(pa.table({"text": ["a", "bc"]}))
        writer.finish()


WRITERS = {"rejects": _rejects, "bins": _bins, "documents": _documents}


def _interrupted(line: int, work: Callable[[], None]) -> bool:
    """Interrupt the work at the n-th line that runs in `AtomicFile`; return whether it came to that."""
    seen = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal seen
        if frame.f_code not in _CODE:
            return None
        if event in ("call", "line"):
            seen += 1
            if seen == line:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return seen >= line


@pytest.mark.parametrize("name", WRITERS)
def test_an_interrupt_stays_one(tmp_path: Path, name: str) -> None:
    line = 0
    came = True
    while came:
        line += 1
        try:
            came = _interrupted(line, partial(WRITERS[name], tmp_path / str(line)))
        except KeyboardInterrupt:
            assert not list((tmp_path / str(line)).iterdir())
            continue
        assert not came, f"line {line}: the interrupt was taken for something else, and lost"
    assert line > 20
