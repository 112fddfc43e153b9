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
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from tasks.inputs.parts import LARGEST_PIECE, Cut, piece_bytes
from tasks.storage.reading import Ranges

# Text that compresses better is refused where it is read (`tasks.inputs.readers`): rows compress 3 to 50 times, logs
# 100 times; zeros or newlines 1,000 times with gzip and 30,000 times with zstd. So much is read in any case.
MOST_EXPANSION = 250
SMALLEST_LIMIT = 64 << 20

_CHUNK_BYTES = 1 << 18
# Of gzip, read at once: what is left of it behind a member is copied.
_STORED_BYTES = 1 << 14
# To see whether a member starts there: its three bytes stand anywhere by chance once in 16 MiB. More than its header
# takes, which may have a field of 64 KiB.
_FEW_BYTES = 1 << 17
# So much is read and decoded of what turns out to be no member; to read anything counts as this. Chance costs a
# hundredth of it, but a file may be made of such places.
_MOST_IN_VAIN = LARGEST_PIECE
_CALL_BYTES = 1 << 10
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


def members_at(file: Ranges, path: str, starts: Iterable[int]) -> tuple[Member, ...]:
    """Decode what starts at these places: what starts in one piece of the file is one.

    Args:
        file: the file, open.
        starts: where the bytes stand that start one, in order; 0 is the first of the first block's.

    Returns:
        Those that follow each other to the end of the block, if any do. Nothing if nothing but the start of the file
            may be one: what a file of one member costs is to look.

    Raises:
        OSError: the file cannot be read.
    """
    starts = iter(starts)
    decode, may_start = (_frames, _any) if path.endswith(".zst") else (_gzip_members, _may_be_gzip)
    work = _Work(file)
    first: list[int] = []
    for start in starts:
        first.append(start)
        if work.bytes > _MOST_IN_VAIN:
            return ()
        if start and may_start(work, start):
            break
    else:
        return ()
    found: list[Member] = []
    for start in chain(first, starts):
        if found and start < found[-1].stop:
            continue
        if found and start > found[-1].stop:
            found.clear()
        # All that was done so far was in vain.
        if not found and (work.bytes > _MOST_IN_VAIN or (start and not first[0])):
            break
        try:
            found.append(decode(work, path, start))
        except (_NotAMemberError, zlib.error):
            found.clear()
        except OSError as error:
            # Arrow's errors of decoding have no number.
            if error.errno is not None:
                raise
            found.clear()
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


class _Work:
    """A file, and how much was read of it and decoded."""

    def __init__(self, file: Ranges) -> None:
        self._file = file
        self.file_bytes = file.bytes
        self.bytes = 0

    def read(self, at: int, size: int) -> bytes:
        data = self._file.read(at, size)
        self.bytes += _CALL_BYTES + len(data)
        return data

    def decoded(self, text: bytes) -> None:
        self.bytes += len(text)


def _frames(work: _Work, path: str, start: int) -> Member:
    """Decode the frames that start in the piece of the file in which this one does."""
    import pyarrow as pa

    from tasks.storage.parquet import open_native

    piece = piece_bytes(work.file_bytes)
    stop = start
    while stop < work.file_bytes and stop // piece == start // piece:
        stop = _end_of_frame(work, stop)
    text = _Text()
    with (
        open_native(path) as source,
        pa.CompressedInputStream(source.get_stream(start, stop - start), "zstd") as stream,
    ):
        while chunk := stream.read(_CHUNK_BYTES):
            work.decoded(chunk)
            text.add(chunk, stop - start)
    return Member(start, stop, text.newlines, text.last)


def _end_of_frame(work: _Work, start: int) -> int:
    """Return where a frame ends, and the skippable ones after it, from the sizes in its headers."""
    at = _past_skippable(work, start, start)
    header = work.read(at, 5)
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
        head = work.read(at, 3)
        block = int.from_bytes(head, "little")
        is_last, kind, size = block & 1, block >> 1 & 3, block >> 3
        if len(head) < 3 or kind == 3 or size > _LARGEST_BLOCK:
            raise _NotAMemberError
        # A block of one repeated byte gives the size of its text.
        at += 3 + (1 if kind == 1 else size)
    at = _past_skippable(work, start, at + (4 if flags & 4 else 0))
    if at > work.file_bytes:
        raise _NotAMemberError
    return at


def _past_skippable(work: _Work, start: int, at: int) -> int:
    while at - start <= LARGEST_PIECE:
        header = work.read(at, 8)
        if len(header) < 8 or header[1:4] != _SKIPPABLE or header[0] >> 4 != 5:
            return at
        at += 8 + int.from_bytes(header[4:], "little")
    raise _NotAMemberError


def _any(_: _Work, __: int) -> bool:
    # The four bytes of zstd stand anywhere by chance once in 4 GiB.
    return True


def _may_be_gzip(work: _Work, start: int) -> bool:
    """Return whether some of what starts here can be decoded; of three bytes that stand here by chance it cannot."""
    decoder = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        return bool(decoder.decompress(work.read(start, _FEW_BYTES), _CHUNK_BYTES)) or decoder.eof
    except zlib.error:
        return False


def _gzip_members(work: _Work, _: str, start: int) -> Member:
    """Decode the members that start in the piece of the file in which this one does."""
    piece = piece_bytes(work.file_bytes)
    text = _Text()
    at = stop = start
    stored = b""
    while stop < work.file_bytes and stop // piece == start // piece:
        decoder = zlib.decompressobj(16 + zlib.MAX_WBITS)
        while not decoder.eof:
            if not stored:
                stored = work.read(at, _STORED_BYTES)
                at += len(stored)
            if not stored or at - stop > LARGEST_PIECE:
                raise _NotAMemberError
            chunk = decoder.decompress(stored, _CHUNK_BYTES)
            # The second is what lies behind the member.
            stored = decoder.unconsumed_tail or decoder.unused_data
            if chunk:
                work.decoded(chunk)
                text.add(chunk, at - len(stored) - start)
        stop = at - len(stored)
    return Member(start, stop, text.newlines, text.last)


class _Text:
    """What is known of text: how many newlines it has, and its last byte."""

    def __init__(self) -> None:
        self.newlines = 0
        self.last = -1
        self._bytes = 0

    def add(self, chunk: bytes, stored: int) -> None:
        """Count some of it, of which so many bytes are stored.

        Raises:
            _NotAMemberError: the reader of this piece would refuse it, though perhaps not the whole file.
        """
        self._bytes += len(chunk)
        if self._bytes > max(SMALLEST_LIMIT, MOST_EXPANSION * stored):
            raise _NotAMemberError
        self.newlines += chunk.count(_NEWLINE)
        self.last = chunk[-1]
