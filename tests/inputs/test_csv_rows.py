"""CSV rows against the standard library's reader with its own options, and every kind of broken row."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from schemas.errors import InputError
from tasks.inputs.csv_rows import csv_header, read_csv
from tasks.inputs.readers import BATCH_ROWS, RowFault
from tasks.inputs.segments import Format, Segment

COMPRESSED: dict[Format, Any] = {
    "csv": bytes,
    "csv.gz": gzip.compress,
    "csv.zst": lambda data: pa.compress(data, "zstd", asbytes=True),
    "csv.bz2": bz2.compress,
}


def segment(path: Path, data: bytes, kind: Format = "csv") -> Segment:
    path.write_bytes(COMPRESSED[kind](data))
    return Segment(str(path), path.name, kind, 0, -1, 0, path.stat().st_size)


def read(given: Segment) -> list[tuple[int, Any]]:
    return [row for batch in read_csv(given) for row in batch]


@pytest.mark.parametrize("kind", COMPRESSED)
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_rows_are_those_that_were_written(tmp_path: Path, kind: Format, ending: str) -> None:
    rng = random.Random(3)
    signs = ["a", "é", '"', ",", "\n", "\r\n", " ", "1.5", "日"]
    rows = [
        {name: "".join(rng.choices(signs, k=rng.randrange(4))) for name in ("one", "two", 'th"ree')}
        for _ in range(1_000)
    ]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, ["one", "two", 'th"ree'], lineterminator=ending, quoting=csv.QUOTE_MINIMAL)
    writer.writeheader()
    writer.writerows(rows)
    given = segment(tmp_path / "a", text.getvalue().encode(), kind)
    assert csv_header(given) == ["one", "two", 'th"ree']
    assert read(given) == [
        (number, {name: value or None for name, value in row.items()}) for number, row in enumerate(rows)
    ]
    assert max(map(len, read_csv(given))) == BATCH_ROWS


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"", []),
        (b"a,b", []),
        (b"a,b\n", []),
        (b"\xef\xbb\xbfa,b\n1,2", [(0, {"a": "1", "b": "2"})]),
        (b'a,b\n"",\n', [(0, {"a": None, "b": None})]),
        (b"a,b\n1,2\n\n\r\n3,4\n", [(0, {"a": "1", "b": "2"}), (1, {"a": "3", "b": "4"})]),
        (b'a,b\n\xff,5" disk\n', [(0, {"a": "\\xff", "b": '5" disk'})]),
        (
            b"a,b\n1\n1,2,3\n,\n",
            [
                (0, RowFault("field_count", "the row has 1 fields, the header has 2")),
                (1, RowFault("field_count", "the row has 3 fields, the header has 2")),
                (2, {"a": None, "b": None}),
            ],
        ),
    ],
)
def test_unusual_files(tmp_path: Path, data: bytes, wanted: list[tuple[int, Any]]) -> None:
    assert read(segment(tmp_path / "a", data)) == wanted


@pytest.mark.parametrize(
    ("data", "line", "why"),
    [
        (b'a,b\n1,2\n3,"4\n5,6\n7,8\n', 3, "unexpected end of data"),
        (b'a,b\n1,2\n3,"4\n5,6"x,7\n8,9\n', 3, "'\"'"),
        (b"a,b\n1,2\r3,4\n", 2, "new-line character"),
        (b'a,b\n1,"' + b"x\n" * 100_000 + b'"\n', 2, "a field of more than 131,072 characters"),
    ],
)
def test_quotes_that_do_not_pair_up_stop_with_their_line(
    tmp_path: Path, data: bytes, line: int, why: str
) -> None:
    with pytest.raises(InputError) as caught:
        read(segment(tmp_path / "a", data))
    assert (caught.value.code, caught.value.where) == ("bad_csv", "a")
    assert f"starts in line {line} " in caught.value.message and why in caught.value.message


@pytest.mark.parametrize("kind", ["csv.gz", "csv.zst", "csv.bz2"])
def test_compressed_files_that_end_early(tmp_path: Path, kind: Format) -> None:
    given = segment(tmp_path / "a", b"a,b\n" + b"1,2\n" * 100_000, kind)
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:-12])
    with pytest.raises(InputError) as caught:
        read(given)
    assert caught.value.code == "truncated_input"
