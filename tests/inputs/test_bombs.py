"""Compressed files that expand without end are refused after little of them, by every reader of text."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from schemas.errors import InputError
from tasks.inputs.csv_columns import read_csv_columns
from tasks.inputs.csv_rows import read_csv
from tasks.inputs.files import InputFile
from tasks.inputs.json_array import is_array, read_array
from tasks.inputs.readers import RowFault, read_rows, text_lines
from tasks.inputs.segments import Format, Segment, whole_file

CODECS = {"gz": "gzip", "zst": "zstd", "bz2": "bz2"}


def compressed(path: Path, kind: Format, piece: bytes, megabytes: int, start: bytes = b"") -> Segment:
    with (
        pa.OSFile(str(path), "wb") as file,
        pa.CompressedOutputStream(file, CODECS[kind.rpartition(".")[2]]) as out,
    ):
        out.write(start)
        for _ in range(megabytes):
            out.write(piece * ((1 << 20) // len(piece)))
    return whole_file(InputFile(path, path.name, path.stat().st_size), kind)


def read_all(segment: Segment) -> int:
    return sum(len(batch) for batch in read_rows(segment))


BOMBS: dict[str, tuple[Format, bytes, bytes, Callable[[Segment], Any]]] = {
    "newlines": ("jsonl.zst", b"\n", b"", read_all),
    "newlines of gzip": ("jsonl.gz", b"\n", b"", read_all),
    "newlines of bzip2": ("jsonl.bz2", b"\n", b"", read_all),
    "one line": ("jsonl.zst", b"x", b"", read_all),
    "CSV of newlines": ("csv.zst", b"\n", b"a,b\n", lambda segment: [*read_csv(segment)]),
    "CSV of newlines, as columns": ("csv.zst", b"\n", b"a\n", lambda segment: [*read_csv_columns(segment, ["a"])]),
    "array of spaces": ("json.zst", b" ", b"", is_array),
    "array and spaces": ("json.zst", b" ", b"[{}", lambda segment: [*read_array(segment)]),
    "array with a long text": ("json.zst", b"x", b'["', lambda segment: [*read_array(segment)]),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.inputs.readers.SMALLEST_LIMIT", 4 << 20)
    kind, piece, start, read = BOMBS[name]
    segment = compressed(tmp_path / f"bomb.{kind}", kind, piece, 20, start)
    with pytest.raises(InputError) as caught:
        read(segment)
    # An element that is too long may be noticed first.
    assert caught.value.code in ("expands_too_far", "bad_json_array", "bad_csv")
    assert "bomb" in caught.value.where


def test_what_expands_less_or_is_small_is_read(tmp_path: Path) -> None:
    assert read_all(compressed(tmp_path / "small.jsonl.zst", "jsonl.zst", b"\n", 60)) == 0
    segment = compressed(tmp_path / "digits.jsonl.zst", "jsonl.zst", b'{"a":1}\n', 1)
    assert read_all(segment) == 1 << 17


def test_lines_are_the_same_however_they_are_cut() -> None:
    text = b"\n\na\n\n\n\nbc\n" + b"\n" * 50 + b"d"
    for size in range(1, len(text) + 1):
        chunks = [text[at : at + size] for at in range(0, len(text), size)]
        assert [line for lines in text_lines(iter(chunks)) for line in lines] == text.split(b"\n")


def test_rows_after_blank_lines_keep_their_numbers_and_memory_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{}\n" + b"\n" * (32 << 20) + b'{"a":1}\n{\n')
    segment = Segment(str(path), path.name, "jsonl", 0, path.stat().st_size, 0, path.stat().st_size)
    tracemalloc.start()
    rows = [row for batch in read_rows(segment) for row in batch]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    last = (32 << 20) + 1
    assert rows[:2] == [(0, {}), (last, {"a": 1})]
    assert rows[2][0] == last + 1 and isinstance(rows[2][1], RowFault)
    assert peak < 16 << 20
