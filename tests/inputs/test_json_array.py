"""Elements of a JSON array, read in pieces, against the standard library that reads it whole."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import InputError
from tasks.inputs import json_array
from tasks.inputs.json_array import is_array, read_array
from tasks.inputs.readers import RowFault
from tasks.inputs.segments import Segment


def segment(path: Path, data: bytes) -> Segment:
    path.write_bytes(data)
    return Segment(str(path), path.name, "json", 0, -1, 0, len(data))


def read(given: Segment) -> list[tuple[int, Any]]:
    return [row for batch in read_array(given) for row in batch]


@pytest.mark.parametrize("chunk_bytes", [1, 2, 7, 64, 10_000])
@pytest.mark.parametrize("indent", [None, 2])
def test_elements_are_those_of_the_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int, indent: int | None
) -> None:
    rng = random.Random(chunk_bytes)
    elements = [
        {"é]}": rng.choice([1, 12.5, None, 'a"],[{', [{}], "日本"]), "n": rng.randrange(10**9)}
        for _ in range(300)
    ]
    data = json.dumps(elements, indent=indent, ensure_ascii=False).encode()

    def chunks(given: Segment) -> Iterator[bytes]:
        return (data[at : at + chunk_bytes] for at in range(0, len(data), chunk_bytes))

    monkeypatch.setattr(json_array, "text_chunks", chunks)
    assert read(segment(tmp_path / "a", data)) == list(enumerate(elements))


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"[]", []),
        (b" [ ] \n", []),
        (b"\xef\xbb\xbf[{}]", [(0, {})]),
        (b'[1, "a", null, {"b": 2}]', [
            (0, RowFault("not_an_object", "the element is 1, not an object")),
            (1, RowFault("not_an_object", 'the element is "a", not an object')),
            (2, RowFault("not_an_object", "the element is null, not an object")),
            (3, {"b": 2}),
        ]),
    ],
)  # fmt: skip
def test_small_arrays(tmp_path: Path, data: bytes, wanted: list[tuple[int, Any]]) -> None:
    assert is_array(segment(tmp_path / "a", data))
    assert read(segment(tmp_path / "a", data)) == wanted


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[", b"[1", b"[1,", b"[1 2]", b"[1,]", b"[,1]", b"[1]]", b"[1] 2", b"[NaN]", b'["\xff"]'],
)
def test_what_is_not_an_array(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(InputError) as caught:
        read(segment(tmp_path / "a", data))
    assert (caught.value.code, caught.value.where) == ("bad_json_array", "a")


def test_lines_of_objects_are_not_an_array(tmp_path: Path) -> None:
    assert not is_array(segment(tmp_path / "a", b'\n {"a": 1}\n[1]\n'))
    assert not is_array(segment(tmp_path / "a", b""))
