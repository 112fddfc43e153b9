"""Columns of CSV against its rows, over random files with quotes, blank and broken lines, in chunks of any size."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from schemas.errors import InputError
from tasks.inputs import readers
from tasks.inputs.csv_columns import read_csv_columns
from tasks.inputs.csv_rows import read_csv
from tasks.inputs.readers import RowFault
from tasks.inputs.segments import Segment

PIECES = ["a", "b,c", "é", ",", "\n", "\r\n", "1", "\r", b"\xff", '"x"', '"y\n,z"', '"']
# Weights of the pieces: plain files, then those with odd bytes, then those with quotes.
KINDS = [(5, 5, 2, 5, 6, 2, 3), (5, 5, 2, 5, 6, 2, 3, 0.1, 0.2), (5, 5, 2, 5, 6, 2, 3, 0, 0, 0.5, 0.3, 0.05)]


def by_rows(given: Segment) -> Any:
    try:
        rows = [row for batch in read_csv(given) for row in batch]
    except InputError as error:
        return str(error)
    return [(n, v if isinstance(v, RowFault) else (v["é"], v["h"])) for n, v in rows]


def by_columns(given: Segment) -> Any:
    found: list[Any] = []
    try:
        for some in read_csv_columns(given, ["é", None, "absent", "h"]):
            first, none, absent, last = some.columns
            assert none is None and first is not None and last is not None
            assert absent is None or absent.null_count == len(absent)
            pairs = zip(first.to_pylist(), last.to_pylist(), strict=True)
            values = [some.faults.get(place, pair) for place, pair in enumerate(pairs)]
            found += zip(some.numbers.tolist(), values, strict=True)
    except InputError as error:
        return str(error)
    return found


@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_columns_are_those_of_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int) -> None:
    rng = random.Random(kind)
    pieces = [piece if isinstance(piece, bytes) else piece.encode() for piece in PIECES]
    weights = (*KINDS[kind], *[0] * len(pieces))[: len(pieces)]
    seen = {"rows": 0, "faults": 0, "errors": 0}
    for _ in range(300):
        data = "\nh,é\n".encode() + b"".join(rng.choices(pieces, weights, k=rng.randrange(60)))
        monkeypatch.setattr(readers, "CHUNK_BYTES", rng.choice([5, 16, 1_000]))
        (tmp_path / "a").write_bytes(data)
        given = Segment(str(tmp_path / "a"), "a", "csv", 0, -1, 0, len(data))
        wanted = by_rows(given)
        assert by_columns(given) == wanted, data
        if isinstance(wanted, str):
            seen["errors"] += 1
        else:
            seen["rows"] += len(wanted)
            seen["faults"] += sum(isinstance(value, RowFault) for _, value in wanted)
    assert seen["rows"] > 500 and seen["faults"] > 100 and (kind == 0) == (seen["errors"] == 0)


def both_ways(path: Path, data: bytes) -> Any:
    """What both readers find in a file, which is the same."""
    path.write_bytes(data)
    given = Segment(str(path), path.name, "csv", 0, -1, 0, len(data))
    assert by_columns(given) == by_rows(given)
    return by_columns(given)


@pytest.mark.parametrize("chunk", [5, 1_000])
@pytest.mark.parametrize("blank", ["   ", "\t", "\x0b"])
def test_a_line_of_white_space_is_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blank: str, chunk: int
) -> None:
    monkeypatch.setattr(readers, "CHUNK_BYTES", chunk)
    short = RowFault("field_count", "the row has 1 fields, the header has 2")
    data = f"h,é\r\n{blank}\r\n\n1,2\n{blank}".encode()
    assert both_ways(tmp_path / "a.csv", data) == [(0, short), (1, ("2", "1")), (2, short)]


@pytest.mark.parametrize("note", ["", '"q"'])
def test_a_field_of_more_than_the_limit_stops(tmp_path: Path, note: str) -> None:
    most = f"h,é,n\n1,2,{note}\n3,4,{'x' * 131_072}\n"
    assert both_ways(tmp_path / "a.csv", most.encode()) == [(0, ("2", "1")), (1, ("4", "3"))]
    said = both_ways(tmp_path / "a.csv", f"{most}5,6,{'x' * 131_073}\n".encode())
    assert "the row that starts in line 4 has a field of more than 131,072 characters" in said
    # All of the line counts only if it may be one field.
    many = ["x" * 100_000] * 2
    assert both_ways(tmp_path / "a.csv", f"h,é,n\n{','.join(many)},\n".encode()) == [(0, (many[0], many[0]))]


def test_what_arrow_refuses_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise pa.ArrowInvalid("no such block")

    # No file is known that gets so far; a later version of Arrow may be stricter.
    monkeypatch.setattr("pyarrow.csv.read_csv", refuse)
    (tmp_path / "a").write_bytes(b"h\n1\n")
    with pytest.raises(InputError, match="rows from number 0 on are not readable as CSV: no such") as caught:
        list(read_csv_columns(Segment(str(tmp_path / "a"), "a.csv", "csv", 0, -1, 0, 4), ["h"]))
    assert (caught.value.code, caught.value.where) == ("bad_csv", "a.csv")
