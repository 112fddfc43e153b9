"""Cutting: parts that depend on the files alone, and pieces that cover every row once."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from inputs.cutting import cut, look

from schemas.errors import ConfigError
from tasks.inputs import parts as module
from tasks.inputs import readers
from tasks.inputs.files import InputFile, resolve
from tasks.inputs.parts import Cut, ends_group, group_cuts, grouped, line_cuts, piece_bytes
from tasks.inputs.readers import read_rows
from tasks.inputs.segments import Segment, format_of, parts_of

MIB, GIB = 1 << 20, 1 << 30


def file_of(path: Path, content: bytes) -> InputFile:
    path.write_bytes(content)
    return InputFile(path, path.name, len(content))


def ranges(segments: Sequence[Segment]) -> list[tuple[int, int, int]]:
    return [(segment.start, segment.stop, segment.first_row) for segment in segments]


@pytest.mark.parametrize(
    ("size", "piece"),
    [
        (0, MIB),
        (1, MIB),
        (64 * MIB, MIB),
        (64 * MIB + 1, 2 * MIB),
        (128 * MIB, 2 * MIB),
        (GIB, 16 * MIB),
        (GIB + 1, 32 * MIB),
        (8 * GIB + 1, 256 * MIB),
        (16 * GIB, 256 * MIB),
        (10 << 40, 256 * MIB),
    ],
)
def test_pieces_depend_on_the_size_of_their_file_alone(size: int, piece: int) -> None:
    assert piece_bytes(size) == piece


def test_where_a_file_of_lines_is_cut() -> None:
    size = 2 * GIB + 5
    cuts = line_cuts(size, [10] * 33)
    # Golden: 33 pieces of 64 MiB, the last of 5 bytes.
    assert [cut.start for cut in cuts] == [64 * MIB * piece for piece in range(33)]
    assert cuts[1] == Cut(64 * MIB, 128 * MIB, 10, 10, 64 * MIB)
    assert cuts[-1] == Cut(2 * GIB, size, 320, 10, 5)


def test_where_a_parquet_file_is_cut() -> None:
    # Golden: row groups of 10 MiB in pieces of 16 MiB; each belongs to the piece in which it starts.
    cuts = group_cuts(GIB, [(7, 10)] * 102 + [(6, 4)])
    assert [cut.start for cut in cuts[:6]] == [0, 2, 4, 5, 7, 8]
    assert (sum(cut.bytes for cut in cuts), sum(cut.rows for cut in cuts)) == (GIB, 102 * 7 + 6)
    assert all(cut.first_row == 7 * cut.start for cut in cuts)
    # A row group larger than a piece leaves none empty.
    assert [cut.stop for cut in group_cuts(GIB, [(5, 500), (5, 500)])] == [1, 2]
    assert group_cuts(GIB, []) == ()


@pytest.mark.parametrize(
    ("content", "piece", "expected"),
    [
        (b"aa\n", 4, [(0, -1, 0)]),
        (b"a\nb\n", 4, [(0, -1, 0)]),
        (b"a\nb\nc\nd\n", 4, [(0, 4, 0), (4, 8, 2)]),
        # The line that starts in a piece belongs to it.
        (b"a\nbbb\nc\n", 4, [(0, 4, 0), (4, 8, 2)]),
        # No line starts in the second and third.
        (b"aaaaaaaaaaaaa\nb\n", 4, [(0, 4, 0), (12, 16, 1)]),
        (b"a\nbbbbbbbbbbbbbbbb\n", 4, [(0, 4, 0)]),
        (b"no newline at all", 4, [(0, 4, 0)]),
        (b"\n\n\n\n\n\n", 2, [(0, 2, 0), (2, 4, 2), (4, 6, 4)]),
        (b"a\nb\nlast", 4, [(0, 4, 0), (4, 8, 2)]),
        (b"a\r\nb\r\nc\r\n", 5, [(0, 5, 0), (5, 9, 2)]),
    ],
)
def test_pieces_of_lines(
    tmp_path: Path, content: bytes, piece: int, expected: list[tuple[int, int, int]]
) -> None:
    file = file_of(tmp_path / "f.jsonl", content)
    for block_pieces in (1, 2, 9):
        assert ranges(cut([file], piece, block_pieces)) == expected


@pytest.mark.parametrize("seed", range(40))
def test_every_line_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = random.Random(seed)
    # Chunks of a few bytes, so that lines and cuts cross them.
    monkeypatch.setattr(readers, "CHUNK_BYTES", rng.choice([1, 3, 16, 1000]))
    monkeypatch.setattr(readers, "_READ_ON_BYTES", rng.choice([1, 5, 1000]))
    texts = ["x" * rng.choice([0, 1, 5, 40, 300]) for _ in range(rng.randint(1, 100))]
    lines = [rng.choice(["", " ", json.dumps({"t": text}), json.dumps({"t": text})]) for text in texts]
    end = rng.choice(["\n", "\r\n"])
    content = (rng.choice(["", "\ufeff"]) + end.join(lines) + rng.choice(["", end])).encode()
    file = file_of(tmp_path / "f.jsonl", content)
    # What the standard library reads, whole.
    expected = [
        (row, json.loads(line))
        for row, line in enumerate(content.decode("utf-8-sig").split("\n"))
        if line.strip()
    ]
    for piece in (1, 2, 7, 64, 500, len(content) + 1):
        segments = cut([file], piece, rng.randint(1, 5))
        assert [row for one in segments for batch in read_rows(one) for row in batch] == expected
        for segment in segments:
            stop = segment.stop if segment.stop >= 0 else len(content)
            assert segment.bytes == stop - segment.start <= max(piece, 1)


@pytest.mark.parametrize("content", [b"", b"\n", b"\n\n\n\n", b"\xef\xbb\xbf", b"  \r\n \r\n"])
def test_a_file_without_rows(tmp_path: Path, content: bytes) -> None:
    file = file_of(tmp_path / "f.jsonl", content)
    for piece in (1, 2, 100):
        assert [row for segment in cut([file], piece) for row in read_rows(segment)] == []


def test_row_numbers_of_real_pieces(tmp_path: Path) -> None:
    rng = random.Random(3)
    with (tmp_path / "f.jsonl").open("w") as source:
        for row in range(4000):
            # Some lines are longer than a piece.
            source.write(json.dumps({"row": row, "text": "x" * rng.choice([0, 50, 900, 3000])}) + "\n")
            if row % 1500 == 700:
                source.write(json.dumps({"row": -1, "text": "y" * 1_500_000}) + "\n")
    file = InputFile(tmp_path / "f.jsonl", "f.jsonl", (tmp_path / "f.jsonl").stat().st_size)
    expected = [json.loads(line)["row"] for line in file.path.read_text().splitlines()]
    contents = look(file, MIB)
    parts = parts_of([file], [contents.cuts])
    assert len(parts) > 5
    found = [row for [one] in parts for batch in read_rows(one) for row in batch]
    assert [row for row, _ in found] == list(range(len(expected)))
    assert [value["row"] for _, value in found] == expected  # type: ignore[index]


def test_a_file_of_one_block_has_the_digest_of_its_bytes(tmp_path: Path) -> None:
    content = random.Random(5).randbytes(3000)
    file = file_of(tmp_path / "f.jsonl", content)
    assert look(file, 1000, 3).digest == look(file, 10_000).digest == hashlib.sha256(content).hexdigest()
    assert look(file, 7, 1000).digest == hashlib.sha256(content).hexdigest()
    # A larger one that of its blocks' digests.
    blocks = b"".join(hashlib.sha256(content[at : at + 2000]).digest() for at in (0, 2000))
    assert look(file, 1000, 2).digest == hashlib.sha256(blocks).hexdigest()
    empty = file_of(tmp_path / "empty.jsonl", b"")
    assert look(empty, 10).digest == hashlib.sha256(b"").hexdigest()


def test_compressed_files_are_one_segment(tmp_path: Path) -> None:
    files = [file_of(tmp_path / name, b"0123456789") for name in ("b.jsonl.gz", "c.jsonl.zst")]
    assert cut(files, 1) == [
        Segment(str(tmp_path / "b.jsonl.gz"), "b.jsonl.gz", "jsonl.gz", 0, -1, 0, 10),
        Segment(str(tmp_path / "c.jsonl.zst"), "c.jsonl.zst", "jsonl.zst", 0, -1, 0, 10),
    ]


def test_parquet_is_cut_at_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    texts = [random.Random(row).randbytes(500).hex() for row in range(100)]
    pq.write_table(pa.table({"text": texts}), path, row_group_size=10, compression="zstd")
    files = resolve(str(path))
    assert ranges(cut(files, files[0].bytes)) == [(0, -1, 0)]
    assert ranges(cut(files, 1)) == [(i, i + 1, 10 * i) for i in range(10)]
    # The ten groups are of one size.
    segments = cut(files, files[0].bytes * 3 // 10 + 1)
    assert ranges(segments) == [(0, 4, 0), (4, 7, 40), (7, 10, 70)]
    assert sum(segment.bytes for segment in segments) == files[0].bytes
    for piece in (1, 3000, files[0].bytes):
        rows = [row for one in cut(files, piece) for batch in read_rows(one) for row in batch]
        assert [(row, value["text"]) for row, value in rows] == list(enumerate(texts))  # type: ignore[index]


def test_parquet_without_rows(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), path)
    (segment,) = cut(resolve(str(path)), 100)
    assert (segment.start, segment.first_row) == (0, 0)
    assert list(read_rows(segment)) == []


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not parquet at all", b"PAR1" + b"\xff" * 20 + b"PAR1"])
def test_a_broken_footer_is_left_to_the_reader(tmp_path: Path, content: bytes) -> None:
    assert ranges(cut([file_of(tmp_path / "f.parquet", content)], 1)) == [(0, -1, 0)]


def test_other_endings_are_refused() -> None:
    with pytest.raises(ConfigError, match="unsupported_file"):
        format_of("a.json")


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((), []),
        ((3,), [["0"]]),
        ((0, 0, 0), [["0", "1", "2"]]),
        ((4, 6, 1), [["0", "1"], ["2"]]),
        # Those over the largest size of a small file are alone, and end a group.
        ((11, 1, 9, 1), [["0"], ["1", "2"], ["3"]]),
        ((1, 11, 1), [["0"], ["1"], ["2"]]),
    ],
)
def test_groups(monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], expected: list[list[str]]) -> None:
    monkeypatch.setattr(module, "SMALLEST_PIECE", 10)
    files = [(str(number), size, [str(number)]) for number, size in enumerate(sizes)]
    assert grouped(files, 10) == [tuple(group) for group in expected]


def test_which_names_end_a_group() -> None:
    # Golden: these decide which results stay cached.
    names = [f"part-{number:05d}.jsonl" for number in range(400)]
    assert [number for number, name in enumerate(names) if ends_group(name)] == [
        12,
        17,
        77,
        83,
        158,
        289,
        382,
    ]


@pytest.mark.parametrize("seed", range(5))
def test_a_new_file_changes_one_group(seed: int) -> None:
    rng = random.Random(seed)
    names = sorted(f"{rng.getrandbits(40):x}.jsonl" for _ in range(3000))
    files = [(name, rng.randint(0, 20_000), [name]) for name in names]
    before = grouped(files)
    assert 20 < len(before) < 90
    new = (f"{rng.getrandbits(40):x}.jsonl", 7, ["new"])
    after = grouped(sorted([*files, new]))
    # Its own group grew, or was cut in two behind it.
    assert len(set(before) - set(after)) <= 1
    assert len(set(after) - set(before)) <= 2
