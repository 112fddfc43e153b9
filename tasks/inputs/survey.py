"""Read input files once, to learn their content's digest and where they can be cut.

A file is read in blocks of at most 256 MiB, by as many workers as there are, so that one large file does not wait for
one of them. Of a file of one block the digest is the SHA-256 of its bytes, as `sha256sum` prints it; of a larger one
it is the SHA-256 of its blocks' digests, 32 bytes each. A block is a whole number of pieces (see `parts`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from schemas.errors import InputError, remedy
from tasks.inputs.members import Member, magic_of, member_cuts, members_at, places
from tasks.inputs.parts import LARGEST_PIECE, Cut, group_cuts, is_small, line_cuts, piece_bytes
from tasks.storage.reading import Ranges, open_ranges
from tasks.storage.threads import map_threads

BLOCK_BYTES = LARGEST_PIECE
# Read without help: to start tasks for less takes longer. To open a file takes as long as to read some of it.
FEW_BYTES = 64 << 20
_OPENING_BYTES = 16 << 10
_CHUNK_BYTES = 1 << 20
_LINES = (".jsonl", ".ndjson", ".json")
_COMPRESSED_LINES = tuple(ending + codec for ending in _LINES for codec in (".gz", ".zst"))
_ROW_GROUPS = ".parquet"


@dataclass(frozen=True)
class Block:
    """A range of one file.

    Attributes:
        path: absolute.
        start, stop: bytes; `stop` is not part of it.
        file_bytes: size of the file.
    """

    path: str
    start: int
    stop: int
    file_bytes: int

    @property
    def bytes(self) -> int:
        """How many bytes must be read."""
        return self.stop - self.start


@dataclass(frozen=True)
class BlockContent:
    """What a block contains.

    Attributes:
        digest: SHA-256, 64 hex digits.
        lines: how many lines start in each piece of the block, if the file can be cut at lines.
        groups: rows and plain bytes of each row group of the file, in its first block, if it can be cut there.
        members: frames or members of compressed lines that start in the block, if there are several.
    """

    digest: str
    lines: tuple[int, ...] = ()
    groups: tuple[tuple[int, int], ...] = ()
    members: tuple[Member, ...] = ()


@dataclass(frozen=True)
class FileContent:
    """What a run knows of a file's content.

    Attributes:
        digest: see above.
        cuts: its pieces; empty for a file that is read as one.
    """

    digest: str
    cuts: tuple[Cut, ...] = ()


# Reads blocks; returns their contents in the same order.
Survey = Callable[[Sequence[Block]], list[BlockContent]]


class TooMuchToReadError(Exception):
    """More of the inputs is unknown than is worth reading here."""


def blocks_of(path: str, file_bytes: int) -> list[Block]:
    """Return the blocks of a file: at least one."""
    starts = range(0, max(file_bytes, 1), BLOCK_BYTES)
    return [Block(path, start, min(start + BLOCK_BYTES, file_bytes), file_bytes) for start in starts]


def content_of(path: str, file_bytes: int, blocks: Sequence[BlockContent]) -> FileContent:
    """Combine the blocks of a file."""
    digest = blocks[0].digest
    if len(blocks) > 1:
        digest = hashlib.sha256(b"".join(bytes.fromhex(block.digest) for block in blocks)).hexdigest()
    if blocks[0].groups:
        return FileContent(digest, group_cuts(file_bytes, blocks[0].groups))
    if any(block.members for block in blocks):
        members = [member for block in blocks for member in block.members]
        return FileContent(digest, member_cuts(file_bytes, members))
    lines = [count for block in blocks for count in block.lines]
    return FileContent(digest, line_cuts(file_bytes, lines) if lines else ())


def digest_name(file_bytes: int) -> str:
    """Return the name of the digest of a file of this size, as written before it."""
    return "sha256" if file_bytes <= BLOCK_BYTES else "sha256-of-blocks"


def survey_here(blocks: Sequence[Block]) -> list[BlockContent]:
    """Read blocks on a few threads.

    Raises:
        InputError: a file cannot be read.
    """
    if len(blocks) < 2:
        return [read_block(block) for block in blocks]
    return map_threads(read_block, blocks, min(8, os.cpu_count() or 1))


def are_few(blocks: Sequence[Block]) -> bool:
    """Return whether blocks are read without help."""
    return sum(block.bytes + _OPENING_BYTES for block in blocks) <= FEW_BYTES


def survey_few(blocks: Sequence[Block]) -> list[BlockContent]:
    """Read blocks if they are few.

    Raises:
        TooMuchToReadError: they are not.
        InputError: a file cannot be read.
    """
    if not are_few(blocks):
        raise TooMuchToReadError
    return survey_here(blocks)


def read_block(block: Block) -> BlockContent:
    """Read one block.

    Raises:
        InputError: `unreadable`: the file cannot be read.
    """
    can_cut = not is_small(block.file_bytes)
    counts: list[int] | None = [] if can_cut and block.path.endswith(_LINES) else None
    magic = magic_of(block.path) if can_cut and block.path.endswith(_COMPRESSED_LINES) else b""
    digest = hashlib.sha256()
    members: tuple[Member, ...] = ()
    try:
        with open_ranges(block.path) as file:
            chunks = _digested(_chunks(file, block, counts), digest)
            if magic:
                # Also what starts in the block and goes on behind it.
                behind = file.read(block.stop, len(magic) - 1)
                starts = places(magic, chain(chunks, [behind]), block.start)
                # A file may start with a frame that is skipped.
                first = [0] if block.start == 0 else []
                members = members_at(file, block.path, chain(first, filter(None, starts)))
            for _ in chunks:
                pass
    except OSError as error:
        raise InputError(
            f"cannot read this input: {remedy(error)}", code="unreadable", where=block.path
        ) from error
    groups: tuple[tuple[int, int], ...] = ()
    if can_cut and block.start == 0 and block.path.endswith(_ROW_GROUPS):
        groups = _row_groups(block.path)
    return BlockContent(digest.hexdigest(), tuple(counts or ()), groups, members)


def _digested(chunks: Iterable[bytes], digest: hashlib._Hash) -> Iterator[bytes]:
    for chunk in chunks:
        digest.update(chunk)
        yield chunk


def _chunks(file: Ranges, block: Block, counts: list[int] | None) -> Iterator[bytes]:
    """Yield the bytes of a block, and count the lines that start in each of its pieces.

    A line starts at byte 0 and after every newline but one that ends the file, so the newlines that count are those
    of the range that lies one byte before the piece.
    """
    # A file that was cut short since is found by its status.
    before = file.read(block.start - 1, 1) if block.start else b"\n"
    step = piece_bytes(block.file_bytes)
    for start in range(block.start, max(block.stop, block.start + 1), step):
        stop = min(start + step, block.stop)
        starts = int(before == b"\n")
        for at in range(start, stop, _CHUNK_BYTES):
            chunk = file.read(at, min(_CHUNK_BYTES, stop - at))
            if counts is not None:
                starts += chunk.count(b"\n")
            before = chunk[-1:]
            yield chunk
        if counts is not None:
            counts.append(starts - (before == b"\n"))


def _row_groups(path: str) -> tuple[tuple[int, int], ...]:
    """Return rows and plain bytes of each row group; nothing if the footer is damaged, as its reader will say.

    The exact stored size is in the metadata of the column chunks, but reading those aborts the process
    (pyarrow 26, an uncaught C++ exception) when the footer is damaged there.
    """
    from tasks.storage.parquet import PARQUET_ERRORS, parquet_footer

    try:
        metadata = parquet_footer(path)
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    except PARQUET_ERRORS:
        return ()
    if sum(group.num_rows for group in groups) != metadata.num_rows:
        return ()
    return tuple((group.num_rows, group.total_byte_size) for group in groups)
