"""Cutting: parts of bounded size that cover every line once, whatever the size asked for."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas.errors import ConfigError, GristmillError
from tasks.inputs import segments as module
from tasks.inputs.files import InputFile, resolve
from tasks.inputs.segments import Segment, cut, format_of, group, part_bytes_for

MIB = 1 << 20


def file_of(path: Path, content: bytes) -> InputFile:
    path.write_bytes(content)
    return InputFile(path, path.name, len(content))


def ranges(segments: list[Segment]) -> list[tuple[int, int, int]]:
    return [(segment.start, segment.stop, segment.first_row) for segment in segments]


def sized(*sizes: int) -> list[Segment]:
    return [Segment("p", f"{i}", "jsonl", 0, size, 0, size) for i, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (0, 4),
        (1, 4),
        (512 * MIB, 4),
        (512 * MIB + 1, 8),
        (1024 * MIB, 8),
        (1024 * MIB + 1, 16),
        (2**40, 8192),
    ],
)
def test_part_bytes(total: int, expected: int) -> None:
    assert part_bytes_for(total) == expected * MIB


@pytest.mark.parametrize(
    ("content", "part_bytes", "expected"),
    [
        (b"", 4, [(0, 0, 0)]),
        (b"aa\n", 4, [(0, 3, 0)]),
        (b"a\nb\n", 4, [(0, 4, 0)]),
        # A cut that already is a line start stays.
        (b"a\nb\nc\nd\n", 4, [(0, 4, 0), (4, 8, 2)]),
        # Otherwise it moves on to the next one.
        (b"a\nbbb\nc\n", 4, [(0, 6, 0), (6, 8, 2)]),
        # Cuts that move to the same place are one, and none is made at the end.
        (b"aaaaaaaaaaaaa\nb\n", 4, [(0, 14, 0), (14, 16, 1)]),
        (b"a\nbbbbbbbbbbbbbbbb\n", 4, [(0, 19, 0)]),
        (b"no newline at all", 4, [(0, 17, 0)]),
        (b"\n\n\n\n\n\n", 2, [(0, 2, 0), (2, 4, 2), (4, 6, 4)]),
        (b"a\nb\nlast", 4, [(0, 4, 0), (4, 8, 2)]),
        (b"a\r\nb\r\nc\r\n", 5, [(0, 6, 0), (6, 9, 2)]),
    ],
)
def test_jsonl_is_cut_at_line_starts(
    tmp_path: Path, content: bytes, part_bytes: int, expected: list[tuple[int, int, int]]
) -> None:
    assert ranges(cut([file_of(tmp_path / "f.jsonl", content)], part_bytes)) == expected


@pytest.mark.parametrize("seed", range(30))
def test_jsonl_segments_cover_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = random.Random(seed)
    # Chunks of a few bytes, so lines and cuts cross them.
    monkeypatch.setattr(module, "_CHUNK_BYTES", rng.choice([1, 3, 16, 1000]))
    lines = [b"x" * rng.choice([0, 1, 5, 40]) for _ in range(rng.randint(1, 200))]
    content = b"\n".join(lines) + rng.choice([b"", b"\n"])
    for part_bytes in (1, 7, 64, 500, len(content) + 1):
        parts = cut([file_of(tmp_path / "f.jsonl", content)], part_bytes)
        assert b"".join(content[part.start : part.stop] for part in parts) == content
        for part in parts:
            assert part.start == 0 or content[part.start - 1 : part.start] == b"\n"
            assert part.first_row == content.count(b"\n", 0, part.start)
            assert part.bytes == part.stop - part.start
            assert part.bytes <= part_bytes + 41 or len(parts) == 1


def test_small_and_compressed_files_are_not_opened(tmp_path: Path) -> None:
    files = [InputFile(tmp_path / name, name, 10) for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl.zst")]
    assert cut(files, 10) == [
        Segment(str(tmp_path / "a.jsonl"), "a.jsonl", "jsonl", 0, 10, 0, 10),
        Segment(str(tmp_path / "b.jsonl.gz"), "b.jsonl.gz", "jsonl.gz", 0, -1, 0, 10),
        Segment(str(tmp_path / "c.jsonl.zst"), "c.jsonl.zst", "jsonl.zst", 0, -1, 0, 10),
    ]
    assert [part.stop for part in cut(files[1:], 1)] == [-1, -1]


def test_parquet_is_cut_at_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    texts = [random.Random(row).randbytes(500).hex() for row in range(100)]
    pq.write_table(pa.table({"text": texts}), path, row_group_size=10, compression="zstd")
    files = resolve(str(path))
    (whole,) = cut(files, files[0].bytes)
    assert (whole.start, whole.stop, whole.first_row, whole.bytes) == (0, 10, 0, files[0].bytes)
    assert ranges(cut(files, 1)) == [(i, i + 1, 10 * i) for i in range(10)]
    # The ten groups are of one size.
    parts = cut(files, files[0].bytes * 3 // 10 + 1)
    assert ranges(parts) == [(0, 3, 0), (3, 6, 30), (6, 9, 60), (9, 10, 90)]
    assert sum(part.bytes for part in parts) == files[0].bytes


def test_parquet_without_rows(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), path)
    (segment,) = cut(resolve(str(path)), 100)
    assert (segment.start, segment.first_row) == (0, 0)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not parquet at all", b"PAR1" + b"\xff" * 20 + b"PAR1"])
def test_a_broken_footer_names_the_file(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(GristmillError) as caught:
        cut([file_of(tmp_path / "f.parquet", content)], 100)
    assert (caught.value.code, caught.value.where) == ("bad_parquet", str(tmp_path / "f.parquet"))


@pytest.mark.parametrize("name", ["gone.jsonl", "gone.parquet"])
def test_a_file_that_is_gone(tmp_path: Path, name: str) -> None:
    with pytest.raises(GristmillError) as caught:
        cut([InputFile(tmp_path / name, name, 1000)], 100)
    assert (caught.value.code, caught.value.where) == ("unreadable", str(tmp_path / name))


def test_other_endings_are_refused() -> None:
    with pytest.raises(ConfigError, match="unsupported_file"):
        format_of("a.json")


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((), []),
        ((3,), [[0]]),
        ((0, 0, 0), [[0, 1, 2]]),
        ((4, 6, 1), [[0, 1], [2]]),
        ((11, 1, 9, 1), [[0], [1, 2], [3]]),
        ((1, 11, 1), [[0], [1], [2]]),
        ((11, 0), [[0], [1]]),
    ],
)
def test_group(sizes: tuple[int, ...], expected: list[list[int]]) -> None:
    assert [[int(segment.name) for segment in part] for part in group(sized(*sizes), 10)] == expected


def test_many_tiny_files_become_few_parts() -> None:
    parts = group(sized(*[2000] * 100_000), part_bytes_for(2000 * 100_000))
    assert len(parts) == 48


@pytest.mark.parametrize("seed", range(20))
def test_groups_keep_order_and_are_full(seed: int) -> None:
    rng = random.Random(seed)
    segments = sized(*(rng.choice([0, 1, 50, 99, 100, 101, 300]) for _ in range(rng.randint(1, 300))))
    parts = group(segments, 100)
    assert [segment for part in parts for segment in part] == segments
    sizes = [sum(segment.bytes for segment in part) for part in parts]
    assert all(size <= 100 or len(part) == 1 for size, part in zip(sizes, parts, strict=True))
    assert all(a + parts[i + 1][0].bytes > 100 for i, a in enumerate(sizes[:-1]))
