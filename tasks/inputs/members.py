"""Find where compressed text can be cut: between the frames of zstd and the members of gzip.

Most compressed files are one frame or member, and are read as one. Parallel compressors (`pzstd`, `bgzip`) write
many, and so does who appends one file to another. No index says where they start, and their first bytes may stand
anywhere by chance, or because someone put them there. So a survey decodes what may be one, to its end, and only what
follows without a gap from the first byte of the file to its last is believed. Anything else is read as one, by a
reader that says what is wrong with it.

zstd: RFC 8878. gzip: RFC 1952.

Importing this module is cheap: the check for a finished run looks at inputs before it loads anything else.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tasks.inputs.parts import LARGEST_PIECE, Cut, piece_bytes
from tasks.storage.reading import Ranges

# Text that compresses better is refused where it is read (`tasks.inputs.readers`): rows compress 3 to 50 times, logs
# 100 times; zeros or newlines 1,000 times with gzip and 30,000 times with zstd. So much is read in any case.
MOST_EXPANSION = 250
SMALLEST_LIMIT = 64 << 20

_CHUNK_BYTES = 1 << 18
_MAGIC = {".zst": b"\x28\xb5\x2f\xfd", ".gz": b"\x1f\x8b\x08"}
_SKIPPABLE = b"\x2a\x4d\x18"
_LARGEST_BLOCK = 128 << 10
_NEWLINE = b"\n"


class Member(NamedTuple):
    """Consecutive frames or members of a file, with what skippable frames follow them.

    Attributes:
        start, stop: bytes of the file; `stop` is not part of it.
        newlines: how many its text has.
        last: the last byte of its text, -1 if it has none.
    """

    start: int
    stop: int
    newlines: int
    last: int


class _NotAMemberError(Exception):
    """What stands here is no frame or member, or one that is not cut out."""


def magic_of(path: str) -> bytes:
    """Return the bytes that start a frame or member of a file of this name; none if it cannot be cut there."""
    return next((magic for ending, magic in _MAGIC.items() if path.endswith(ending)), b"")


def places(magic: bytes, chunks: Iterable[bytes], start: int) -> Iterator[int]:
    """Yield the places in a file where some bytes stand.

    Args:
        magic: what to look for.
        chunks: the file from byte `start` on.
    """
    held = b""
    for chunk in chunks:
        text = held + chunk
        at = text.find(magic)
        while at >= 0:
            yield start - len(held) + at
            at = text.find(magic, at + 1)
        start += len(chunk)
        held = text[1 - len(magic) :]


def members_at(file: Ranges, path: str, starts: Sequence[int]) -> tuple[Member, ...]:
    """Decode what starts at these places; those in one piece of the file that follow each other are one.

    Args:
        file: the file, open.
        starts: where the bytes stand that start one, in order.

    Returns:
        Nothing if there is only the start of the file: what a file of one member costs is to look.
    """
    if not any(starts):
        return ()
    decode = _frame if path.endswith(".zst") else _gzip_member
    piece = piece_bytes(file.bytes)
    found: list[Member] = []
    for start in starts:
        if found and start < found[-1].stop:
            continue
        try:
            member = decode(file, path, start)
        except (_NotAMemberError, zlib.error, OSError):
            continue
        before = found[-1] if found else None
        if before is None or before.stop != start or before.start // piece != start // piece:
            found.append(member)
        else:
            last = before.last if member.last < 0 else member.last
            found[-1] = Member(before.start, member.stop, before.newlines + member.newlines, last)
    return tuple(found)


def member_cuts(file_bytes: int, members: Iterable[Member]) -> tuple[Cut, ...]:
    """Return the pieces of a compressed file in which lines start; nothing if there is only one.

    Nothing also if its members do not follow each other from its first byte to its last.

    >>> [(cut.start, cut.first_row, cut.rows, cut.is_inside)
    ...  for cut in member_cuts(3 << 20, [Member(0, 2 << 20, 5, 10), Member(2 << 20, 3 << 20, 4, 65)])]
    [(0, 0, 5, False), (2097152, 5, 5, False)]
    """
    by_start = {member.start: member for member in members}
    piece = piece_bytes(file_bytes)
    cuts: list[Cut] = []
    at = row = 0
    last = ord(_NEWLINE)
    while at < file_bytes:
        first, before, row_before = at, last, row
        while at < file_bytes and at // piece == first // piece:
            member = by_start.get(at)
            if member is None:
                return ()
            at = member.stop
            if member.last >= 0:
                # A line starts with the text, if one ended before it, and after each newline but one at its end.
                row += member.newlines + (last == ord(_NEWLINE)) - (member.last == ord(_NEWLINE))
                last = member.last
        if row > row_before:
            is_inside = before != ord(_NEWLINE)
            cuts.append(Cut(first, at, row_before, row - row_before, at - first, is_inside))
    return tuple(cuts) if len(cuts) > 1 else ()


def _frame(file: Ranges, path: str, start: int) -> Member:
    import pyarrow as pa

    from tasks.storage.parquet import open_native

    stop = _end_of_frame(file, start)
    newlines, last, held = 0, -1, 0
    with (
        open_native(path) as source,
        pa.CompressedInputStream(source.get_stream(start, stop - start), "zstd") as stream,
    ):
        while text := stream.read(_CHUNK_BYTES):
            held = _bounded(held + len(text), stop - start)
            newlines += text.count(_NEWLINE)
            last = text[-1]
    return Member(start, stop, newlines, last)


def _end_of_frame(file: Ranges, start: int) -> int:
    """Return where a frame ends, and the skippable ones after it, from the sizes in its headers."""
    at = _past_skippable(file, start)
    header = file.read(at, 5)
    if header[:4] != _MAGIC[".zst"] or len(header) < 5 or header[4] & 8:
        raise _NotAMemberError
    flags = header[4]
    is_single = flags >> 5 & 1
    size_bytes = (is_single, 2, 4, 8)[flags >> 6]
    at += 5 + (1 - is_single) + (0, 1, 2, 4)[flags & 3] + size_bytes
    is_last = 0
    while not is_last:
        if at - start > LARGEST_PIECE:
            raise _NotAMemberError
        block = int.from_bytes(file.read(at, 3), "little")
        is_last, kind, size = block & 1, block >> 1 & 3, block >> 3
        if kind == 3 or size > _LARGEST_BLOCK:
            raise _NotAMemberError
        # A block of one repeated byte gives the size of its text.
        at += 3 + (1 if kind == 1 else size)
    at = _past_skippable(file, at + (4 if flags & 4 else 0))
    if at > file.bytes or at - start > LARGEST_PIECE:
        raise _NotAMemberError
    return at


def _past_skippable(file: Ranges, at: int) -> int:
    while (header := file.read(at, 8))[1:4] == _SKIPPABLE and header[0] >> 4 == 5 and len(header) == 8:
        at += 8 + int.from_bytes(header[4:], "little")
    return at


def _gzip_member(file: Ranges, _: str, start: int) -> Member:
    decoder = zlib.decompressobj(16 + zlib.MAX_WBITS)
    at, newlines, last, held = start, 0, -1, 0
    while not decoder.eof:
        stored = decoder.unconsumed_tail
        if not stored:
            stored = file.read(at, _CHUNK_BYTES)
            at += len(stored)
        if not stored or at - start > LARGEST_PIECE:
            raise _NotAMemberError
        text = decoder.decompress(stored, _CHUNK_BYTES)
        if text:
            held = _bounded(held + len(text), at - start)
            newlines += text.count(_NEWLINE)
            last = text[-1]
    return Member(start, at - len(decoder.unused_data), newlines, last)


def _bounded(held: int, stored: int) -> int:
    if held > max(SMALLEST_LIMIT, MOST_EXPANSION * stored):
        raise _NotAMemberError
    return held
