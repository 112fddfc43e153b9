"""Records read without Arrow equal what Arrow reads, and whatever is not laid out so is left to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from records import measurements, random_rows, record, write_records

from schemas.errors import WorkError
from tasks.probes.records import encode, frames
from tasks.probes.records.plain import plain_rows
from tasks.probes.training.sampler import ProbeRowSampler
from tasks.probes.training.source import ProbeRowDataSource


@pytest.fixture
def unknown_layout(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As under a release of Arrow that lays its messages out in another way."""

    def nowhere(words: object, wanted: object) -> int:
        raise ValueError

    monkeypatch.setattr(frames, "_find", nowhere)
    encode._find_frames.cache_clear()
    yield
    encode._find_frames.cache_clear()


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return random_rows(0, 200)


@pytest.fixture(scope="module")
def records_of(rows: list[dict[str, Any]]) -> list[bytes]:
    return [record(row["src_addr"], row["measurements"]) for row in rows]


def test_rows_are_those_that_were_written(rows: list[dict[str, Any]], records_of: list[bytes]) -> None:
    plain = plain_rows(records_of)
    assert plain is not None and len(plain) == len(rows)
    assert plain.sizes.tolist() == [row["measurements"].num_rows for row in rows]
    for found, wanted in zip(plain, rows, strict=True):
        assert found["src_addr"] == wanted["src_addr"]
        assert found["measurements"].equals(wanted["measurements"])
    assert [row["src_addr"] for row in plain[5:9]] == [row["src_addr"] for row in rows[5:9]]
    joined = pa.Table.from_batches([row["measurements"] for row in rows])
    row = np.array([7, 7, 199, 0])
    position = np.array([plain.sizes[7] - 1, 0, 0, 0])
    times, dst, rtts = plain.take(row, position)
    wanted = joined.take(pa.array((np.cumsum(plain.sizes) - plain.sizes)[row] + position))
    assert times.tolist() == wanted["event_time"].cast(pa.int64()).to_pylist()
    assert dst.to_pylist() == wanted["dst_addr"].to_pylist()
    assert rtts.tolist() == wanted["rtt"].to_pylist()


def test_contexts_are_those_of_the_rows_read_by_arrow(
    rows: list[dict[str, Any]], records_of: list[bytes]
) -> None:
    streams = [(0, number) for number in range(len(rows))]
    plain = plain_rows(records_of)
    assert plain is not None
    ours, theirs = ProbeRowSampler().sample(plain, streams), ProbeRowSampler().sample(rows, streams)
    assert np.array_equal(ours.tokens, theirs.tokens)
    assert np.array_equal(ours.offsets, theirs.offsets)


def test_what_is_laid_out_otherwise_is_left_to_arrow(records_of: list[bytes]) -> None:
    good = records_of[0]
    [row] = random_rows(1, 1, mean=5_000, sigma=0.01)
    for other in (
        b"", b"nonsense", good[:-8], good + bytes(8), good[8:], record(row["src_addr"], row["measurements"]),
        record("11.0.0.1", measurements([(5, "10.0.0.1", 1.0), (6, "", 2.0)])).replace(b"event_time", b"event_tame"),
    ):  # fmt: skip
        assert plain_rows([good, other]) is None
    assert plain_rows([]) is None


def test_an_unknown_layout_is_read_by_arrow_and_never_written(
    unknown_layout: None, records_of: list[bytes], tmp_path: Path
) -> None:
    assert plain_rows(records_of) is None
    source = ProbeRowDataSource(write_records(tmp_path / "train.arrayrecord", records_of).as_posix())
    found = source.sampler_rows(range(len(records_of)))
    assert [row["src_addr"] for row in found] == [row["src_addr"] for row in random_rows(0, 200)]
    assert all(
        a["measurements"].equals(b["measurements"]) for a, b in zip(found, random_rows(0, 200), strict=True)
    )
    with pytest.raises(WorkError, match="install the version in the lock file") as caught:
        encode.measurements_bytes(1, 1)
    assert caught.value.code == "arrow_layout"


def test_no_changed_byte_makes_it_read_elsewhere(records_of: list[bytes]) -> None:
    """Every byte of a record, changed: it is left to Arrow, or only the value it belongs to is another."""
    good = record(
        "11.0.0.1", measurements([(5, "10.0.0.1", 1.0), (6, "10.0.0.20", 2.0), (9, "10.0.0.3", 3.0)])
    )
    left = 0
    for at in range(len(good)):
        changed = bytearray(good)
        changed[at] ^= 0xFF
        plain = plain_rows([bytes(changed), good])
        if plain is None:
            left += 1
            continue
        assert plain.sizes.tolist() == [3, 3]
        times, dst, rtts = plain.take(np.zeros(3, np.int64), np.arange(3))
        before = plain.take(np.ones(3, np.int64), np.arange(3))
        lengths = [len(text) for text in dst.cast(pa.binary()).to_pylist()]
        assert lengths == [len(text) for text in before[1].to_pylist()]
        same = [
            np.array_equal(times, before[0]),
            dst.equals(before[1]),
            np.array_equal(rtts.view(np.int32), before[2].view(np.int32)),
        ]
        assert sum(same) >= 2
    # All but the values themselves, the identifier, and what nobody reads: paddings, versions, times of the record.
    assert left > len(good) - 200
