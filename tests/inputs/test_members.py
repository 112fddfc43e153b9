"""Compressed text is cut between its frames or members, and every line is read once."""

from __future__ import annotations

import errno
import gzip
import itertools
import json
import random
import struct
import zlib
from pathlib import Path

import pyarrow as pa
import pytest
from inputs.cutting import cut, look

from schemas.errors import InputError
from tasks.inputs import members, readers
from tasks.inputs.files import InputFile
from tasks.inputs.parts import Cut
from tasks.inputs.readers import read_rows
from tasks.inputs.segments import whole_file
from tasks.storage.reading import Ranges

# Written by zstd 1.5.4 and by its pzstd: b"aa\n" with a checksum, b"bb\n" from a pipe (no size of the text in the
# head) with and without one; b"aa\nbb" behind its size.
GOLDEN = (
    "28b52ffd240319000061610afc2eb780",
    "28b52ffd045819000062620acd4163ec",
    "28b52ffd005819000062620a",
    "502a4d18040000001200000028b52ffd045829000061610a6262790eac87",
)


def zst(text: bytes) -> bytes:
    return pa.Codec("zstd").compress(text, asbytes=True)


def pzstd(text: bytes) -> bytes:
    """A frame as pzstd writes it: the size of the frame first, in one that is skipped."""
    frame = zst(text)
    return struct.pack("<III", 0x184D2A50, 4, len(frame)) + frame


def bgzip(text: bytes) -> bytes:
    """A member as bgzip writes it: with its size in the header."""
    raw = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    body = raw.compress(text) + raw.flush()
    head = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff\x06\0BC\x02\0" + struct.pack("<H", len(body) + 25)
    return head + body + struct.pack("<II", zlib.crc32(text), len(text))


# What a compressor appends to the text so far, and the file's ending.
COMPRESSORS = {
    "zstd": (zst, ".jsonl.zst"),
    "pzstd": (pzstd, ".jsonl.zst"),
    "gzip": (gzip.compress, ".jsonl.gz"),
    "bgzip": (bgzip, ".jsonl.gz"),
}


def file_of(path: Path, content: bytes) -> InputFile:
    path.write_bytes(content)
    return InputFile(path, path.name, len(content))


def rows_of(text: bytes) -> list[tuple[int, object]]:
    """What the standard library reads."""
    lines = text.decode("utf-8-sig").split("\n")
    return [(row, json.loads(line)) for row, line in enumerate(lines) if line.strip()]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_every_line_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compressor: str, seed: int
) -> None:
    compress, ending = COMPRESSORS[compressor]
    rng = random.Random(seed)
    for module in (members, readers):
        name = "_CHUNK_BYTES" if module is members else "CHUNK_BYTES"
        monkeypatch.setattr(module, name, rng.choice([1, 7, 1000]))
    lines = [
        rng.choice(["", " ", json.dumps({"t": rng.randbytes(rng.choice([0, 5, 40, 200])).hex()})])
        for _ in range(rng.randint(1, 60))
    ]
    end = rng.choice(["\n", "\r\n"])
    text = (rng.choice(["", "\ufeff"]) + end.join(lines) + rng.choice(["", end])).encode()
    # Cut anywhere: in the middle of a line, twice at the same place, or not at all.
    edges = sorted(rng.randint(0, len(text)) for _ in range(rng.choice([0, 1, 5, 30])))
    if rng.random() < 0.3:
        edges = [text.find(b"\n", edge) + 1 or edge for edge in edges]
    texts = [text[start:stop] for start, stop in zip([0, *edges], [*edges, len(text)], strict=True)]
    content = b"".join(map(compress, texts))
    file = file_of(tmp_path / f"f{ending}", content)
    were_cut = 0
    for piece in (8, 100, 1000, len(content) + 1):
        segments = cut([file], piece, rng.randint(1, 5))
        assert [row for one in segments for batch in read_rows(one) for row in batch] == rows_of(text)
        were_cut += len(segments) > 1
        if len(segments) > 1:
            ends = itertools.accumulate(len(compress(one)) for one in texts)
            # A frame that says how long the next one is belongs to the one before it.
            told = 12 if compressor == "pzstd" else 0
            assert {segment.start for segment in segments} <= {0, *(end + told for end in ends)}
    assert were_cut or len(edges) < 5 or len(lines) < 10


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        # Golden: first row, rows, whether the piece starts inside a line.
        ([b"a\nb\n", b"c\n"], [(0, 2, False), (2, 1, False)]),
        ([b"a\nb", b"c\nd\n"], [(0, 2, False), (2, 1, True)]),
        # The newline of a line in the next frame.
        ([b"a\nb", b"\nc"], [(0, 2, False), (2, 1, True)]),
        # No line starts in the second.
        ([b"a\nb", b"b", b"b\nc\n"], [(0, 2, False), (2, 1, True)]),
        ([b"", b"a\n", b"", b"b"], [(0, 1, False), (1, 1, False)]),
        ([b"\n\n", b"\n"], [(0, 2, False), (2, 1, False)]),
    ],
)
@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_where_lines_start(
    tmp_path: Path, compressor: str, texts: list[bytes], expected: list[tuple[int, int, bool]]
) -> None:
    compress, ending = COMPRESSORS[compressor]
    file = file_of(tmp_path / f"f{ending}", b"".join(map(compress, texts)))
    # Smaller than any frame.
    for block_pieces in (5, 9, 90):
        cuts = look(file, 8, block_pieces).cuts
        assert [(one.first_row, one.rows, one.is_inside) for one in cuts] == expected


def test_frames_of_the_zstd_commands(tmp_path: Path) -> None:
    frames = [bytes.fromhex(digits) for digits in GOLDEN]
    file = file_of(tmp_path / "f.jsonl.zst", b"".join(frames))
    starts = [(one.start, one.first_row) for one in look(file, 8, 9).cuts]
    assert starts == [(0, 0), (16, 1), (32, 2), (44 + 12, 3)]


def decoy(text: bytes) -> bytes:
    """A whole frame and a whole member, as a text of their own."""
    return zst(text) + gzip.compress(text)


@pytest.mark.parametrize("ending", [".jsonl.zst", ".jsonl.gz"])
def test_what_only_looks_like_a_member_is_not_believed(tmp_path: Path, ending: str) -> None:
    rng = random.Random(1)
    # Stored as it is, since it cannot be compressed.
    noise = rng.randbytes(3000).replace(b"\n", b" ")
    texts = [decoy(noise[:40]).replace(b"\n", b" ") + noise + b"\n" for _ in range(4)]
    compress = zst if ending == ".jsonl.zst" else lambda text: gzip.compress(text, 0)
    stored = [compress(text) for text in texts]
    assert all(decoy(noise[:40])[:20] in one for one in stored)
    file = file_of(tmp_path / f"f{ending}", b"".join(stored))
    cuts = look(file, 256).cuts
    assert [one.start for one in cuts] == [sum(map(len, stored[:i])) for i in range(4)]
    assert [one.first_row for one in cuts] == [0, 1, 2, 3]


@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("damage", ["cut", "behind", "flip", "gap", "one", "short"])
def test_anything_else_is_read_as_one(tmp_path: Path, compressor: str, damage: str) -> None:
    compress, ending = COMPRESSORS[compressor]
    lines = [b'{"t": %d}\n' % number for number in range(300)]
    pieces = [compress(b"".join(lines[at : at + 100])) for at in (0, 100, 200)]
    size = len(pieces[0])
    content = {
        "cut": b"".join(pieces)[:-3],
        "behind": b"".join(pieces) + b"\0\0\0",
        # In the second: its type of block, or what its text is.
        "flip": pieces[0] + pieces[1][:30] + bytes([pieces[1][30] ^ 0x7F]) + pieces[1][31:] + pieces[2],
        "gap": pieces[0] + b"?" + pieces[1] + pieces[2],
        "one": compress(b"".join(lines)),
        "short": pieces[0] + pieces[1][: size // 2],
    }[damage]
    file = file_of(tmp_path / f"f{ending}", content)
    cuts = look(file, 16, 4).cuts
    if damage == "one":
        assert cuts == ()
        assert sum(len(batch) for batch in read_rows(whole_file(file, ending[1:]))) == 300
    elif cuts:
        # A flipped bit that a frame without a checksum cannot show.
        assert (damage, sum(one.rows for one in cuts)) == ("flip", 300)
    elif damage != "flip":
        with pytest.raises(InputError):
            list(read_rows(whole_file(file, ending[1:])))


def test_a_bomb_is_not_decoded_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "SMALLEST_LIMIT", 1 << 20)
    for compress, ending in ((zst, ".jsonl.zst"), (gzip.compress, ".jsonl.gz")):
        content = compress(b"{}\n") + compress(b" " * (100 << 20)) + compress(b"{}\n")
        assert look(file_of(tmp_path / f"f{ending}", content), 16).cuts == ()


def test_members_are_not_longer_than_a_piece_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(2)
    texts = [b"{}\n", rng.randbytes(2000).hex().encode() + b"\n", b"{}\n"]
    for compress, ending in ((zst, ".jsonl.zst"), (gzip.compress, ".jsonl.gz")):
        file = file_of(tmp_path / f"f{ending}", b"".join(map(compress, texts)))
        monkeypatch.setattr(members, "LARGEST_PIECE", 1 << 20)
        assert len(look(file, 8, 9).cuts) == 3
        monkeypatch.setattr(members, "LARGEST_PIECE", 500)
        assert look(file, 8, 9).cuts == ()


def test_a_member_longer_than_a_block_is_read_with_the_rest(tmp_path: Path) -> None:
    text = random.Random(2).randbytes(2000).hex().encode() + b"\n"
    for compress, ending in ((zst, ".jsonl.zst"), (gzip.compress, ".jsonl.gz")):
        file = file_of(tmp_path / f"f{ending}", compress(text) + compress(b"{}\n") * 9)
        # Whether it is one of several is not known before its end.
        assert look(file, 8, 9).cuts == ()


def test_the_text_of_a_line_may_end_many_pieces_later(tmp_path: Path) -> None:
    value = json.dumps({"t": random.Random(3).randbytes(5000).hex()}).encode()
    text = b"{}\n" + value + b"\n{}\n"
    stored = [bgzip(text[at : at + 100]) for at in range(0, len(text), 100)]
    file = file_of(tmp_path / "f.jsonl.gz", b"".join(stored))
    segments = cut([file], 64)
    assert [segment.first_row for segment in segments] == [0, 2]
    assert [row for one in segments for batch in read_rows(one) for row in batch] == rows_of(text)


def test_a_cut_of_plain_text_says_nothing_of_lines(tmp_path: Path) -> None:
    file = file_of(tmp_path / "f.jsonl", b"aa\nbb\n")
    assert look(file, 4).cuts == (Cut(0, 4, 0, 2, 4),)


class Reads:
    """Counts what is read of files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = self.bytes = 0
        read = Ranges.read

        def counted(file: Ranges, at: int, size: int) -> bytes:
            data = read(file, at, size)
            self.calls += 1
            self.bytes += len(data)
            return data

        monkeypatch.setattr(Ranges, "read", counted)


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_to_look_at_a_file_that_was_cut_short_takes_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compressor: str
) -> None:
    compress, ending = COMPRESSORS[compressor]
    member = compress(b'{"a":1}\n')
    reads = Reads(monkeypatch)
    # Between two frames it would be another file: pzstd starts one with a frame that is skipped.
    for size in set(range(1, len(member))) - {12}:
        assert look(file_of(tmp_path / f"f{ending}", member * 2 + member[:size]), 8, 9).cuts == ()
    assert reads.calls < len(member) * 200


# What may start a frame or member, many times: each of them goes on to the end of the file, or ends nowhere.
NO_MEMBERS = {
    "names": (b"\x1f\x8b\x08\x08", ".jsonl.gz"),
    "all that a header may have": (b"\x1f\x8b\x08", ".jsonl.gz"),
    "stored": (b"\x1f\x8b\x08" + bytes(7) + b"\0\x0a\0\xf5\xff", ".jsonl.gz"),
    "blocks": (b"\x28\xb5\x2f\xfd\0\x58" + bytes(30), ".jsonl.zst"),
    "skipped": (b"\x28\xb5\x2f\xfd\0\x58\1\0\0" + b"\x50\x2a\x4d\x18" + bytes(4), ".jsonl.zst"),
}


@pytest.mark.parametrize("name", NO_MEMBERS)
@pytest.mark.parametrize("block_pieces", [1, 100])
def test_a_file_of_what_only_looks_like_members_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, block_pieces: int
) -> None:
    monkeypatch.setattr(members, "_MOST_IN_VAIN", 1 << 20)
    piece, ending = NO_MEMBERS[name]
    content = (piece * (1 << 18))[: 1 << 18] + b"?"
    reads = Reads(monkeypatch)
    assert look(file_of(tmp_path / f"f{ending}", content), 1 << 16, block_pieces).cuts == ()
    assert reads.bytes < 5 * (3 << 20)


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_a_piece_that_would_be_refused_for_its_expansion_is_not_cut_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compressor: str
) -> None:
    compress, ending = COMPRESSORS[compressor]
    for module in (members, readers):
        monkeypatch.setattr(module, "SMALLEST_LIMIT", 1 << 18)
    noise = [random.Random(seed).randbytes(3000).hex() for seed in range(9)]
    texts = [b" " * 99_999 + b"\n"] * 20 + [b'{"t": "%s"}\n' % text.encode() for text in noise]
    file = file_of(tmp_path / f"f{ending}", b"".join(map(compress, texts)))
    # Each of the first is small, and the whole file does not expand so far.
    assert look(file, 3000, 99).cuts == ()
    assert sum(len(batch) for batch in read_rows(whole_file(file, ending[1:]))) == 9


def test_a_disk_that_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = file_of(tmp_path / "f.jsonl.gz", gzip.compress(b"{}\n") * 3)
    read = Ranges.read

    def fails(ranges: Ranges, at: int, size: int) -> bytes:
        if size == members._STORED_BYTES:
            raise OSError(errno.EIO, "Input/output error")
        return read(ranges, at, size)

    monkeypatch.setattr(Ranges, "read", fails)
    with pytest.raises(InputError) as caught:
        look(file, 8, 9)
    assert caught.value.code == "unreadable"


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_lines_that_were_counted_and_are_not_there_are_an_error(tmp_path: Path, compressor: str) -> None:
    compress, ending = COMPRESSORS[compressor]
    member = compress(b"{}\n{}\n")
    first, last = cut([file_of(tmp_path / f"f{ending}", member * 2)], len(member))
    # Cut between two of them, or of other text, since.
    for content in (member, member + compress(b"{}\n"), member + compress(b"")):
        (tmp_path / f"f{ending}").write_bytes(content)
        assert sum(map(len, read_rows(first))) == 2
        with pytest.raises(InputError) as caught:
            list(read_rows(last))
        assert caught.value.code == "input_changed"


def test_a_file_of_one_member_is_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Stored as it is, with what starts a member in it.
    noise = random.Random(4).randbytes(50_000)
    text = b"".join(noise[at : at + 1000] + b"\x1f\x8b\x08" for at in range(0, 50_000, 1000))
    file = file_of(tmp_path / "f.jsonl.gz", gzip.compress(text, 0))
    monkeypatch.setattr(members, "_gzip_members", None)
    assert look(file, 1000, 99).cuts == ()
