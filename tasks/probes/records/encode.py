"""Encode records, and compute their sizes in advance.

A record is `schema message + record batch message + end of stream`, twice: around the measurements of a probe, and
around the one row that contains them. It equals, byte for byte, what `pyarrow.ipc.new_stream` writes from separate
arrays; the heads come from `frames`, the bodies are slices of the columns of many probes.

Records are encoded a megabyte at a time: numpy computes values for all of them at once, and slices are copied column
by column, at 0.3 microseconds each. Encoded one by one, each record took 20 microseconds, as long as compressing a
short one.

If a release of Arrow lays out its messages in an unknown way, records are not written, because they would have other
bytes under the same keys; Arrow still reads them (`plain.py`).

Bytes that pad a buffer to a multiple of 8 are zeros here. Arrow copies whatever follows a slice in memory: bytes of
the neighbouring probe, which may be in the other split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from schemas.errors import WorkError
from schemas.probes import measurements_schema, record_schema
from tasks.packing.arrays import ranges
from tasks.probes.records.frames import Frame, padded
from tasks.probes.rows.addresses import src_id
from tasks.probes.rows.sorting import cut_ranges

# Bytes of a measurement without its address: time, end of the address, version, round trip time.
_ROW_BYTES = 17
_TOGETHER_BYTES = 1 << 20
# End of stream.
_END = 0xFFFFFFFF

# 8-byte words of a record between its measurements and its address, and after its address.
MIDDLE_WORDS, TAIL_WORDS = 5, 3
_SCHEMAS = (record_schema, measurements_schema)

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Block:
    """Hold measurements of several probes, in order of probe and time.

    Attributes:
        addresses: addresses of the p probes.
        versions: int8[p], IP version of the probe and all its measurements.
        starts: int64[p + 1], where the measurements of each probe start.
        times: int64[n], microseconds.
        dst_codes: int32[n], indices into `targets`, the destination addresses.
        dst_offsets: int64[n + 1], where each destination would start if all were laid end to end.
        rtts: float32[n].
    """

    addresses: list[str]
    versions: NDArray[np.int8]
    starts: Ints
    times: Ints
    dst_codes: NDArray[np.int32]
    targets: pa.LargeStringArray
    dst_offsets: Ints
    rtts: NDArray[np.float32]


def block_of(
    addresses: list[str],
    starts: Ints,
    times: Ints,
    dst_codes: NDArray[np.int32],
    targets: pa.LargeStringArray,
    rtts: NDArray[np.float32],
) -> Block:
    """Build a block of these columns, contiguous and without nulls."""
    versions = np.array([6 if ":" in address else 4 for address in addresses], np.int8)
    offsets = np.zeros(len(times) + 1, np.int64)
    np.cumsum(pc.binary_length(targets).to_numpy()[dst_codes], out=offsets[1:])
    return Block(addresses, versions, starts, times, dst_codes, targets, offsets, rtts)


@dataclass(frozen=True)
class Records:
    """Hold some encoded records.

    Attributes:
        sizes: int64[r], bytes of each record; `blob_sizes`: int64[r], bytes of its `measurements`.
        data: the bytes of all records, one after the other.
    """

    sizes: Ints
    blob_sizes: Ints
    data: memoryview


@dataclass(frozen=True)
class Frames:
    """Hold the heads of the two streams of a record.

    Attributes:
        record: head of the outer stream.
        measurements: head of the inner stream.
    """

    record: Frame
    measurements: Frame

    @property
    def head_words(self) -> int:
        """8-byte words of a record before its times: both heads, and the columns between them."""
        return self.record.num_words + 2 + self.measurements.num_words


def frames() -> Frames:
    """Return the heads, found on first use, so that importing this module does not depend on Arrow's layout.

    Raises:
        WorkError: `arrow_layout`: this release of Arrow lays out its messages in an unknown way.
    """
    found = _find_frames()
    if isinstance(found, WorkError):
        raise found
    return found


@cache
def _find_frames() -> Frames | WorkError:
    try:
        return Frames(*(Frame(_sample(schema(), 1003), _sample(schema(), 17)) for schema in _SCHEMAS))
    except WorkError as error:
        return error


def measurements_bytes(rows: Any, dst_bytes: Any) -> Any:
    """Return the size of the `measurements` of `rows` rows with `dst_bytes` bytes of destinations; ints or arrays."""
    body = 8 * rows + padded(4 * (rows + 1)) + padded(dst_bytes) + padded(rows) + padded(4 * rows)
    return 8 * frames().measurements.num_words + body + 8


def encode_records(block: Block, max_bytes: int) -> Iterator[Records]:
    """Yield the records of all probes of a block, in order, about a megabyte at a time.

    Args:
        max_bytes: most bytes of the `measurements` of one record; a probe with more has several records.
    """
    cuts = _cut(block, max_bytes)
    rows = np.diff(cuts.edges)
    blob_sizes = measurements_bytes(rows, np.diff(block.dst_offsets[cuts.edges]))
    for low, high in cut_ranges(blob_sizes, _TOGETHER_BYTES):
        yield _encode(block, cuts, blob_sizes[low:high], low, high)


def encode_part(block: Block, part: int, num_parts: int) -> Records:
    """Encode all measurements of a block of one probe as one record, a part of it."""
    edges = np.array([0, len(block.times)])
    cuts = _Cuts(edges, np.array([0]), np.array([part]), np.array([num_parts]))
    return _encode(block, cuts, measurements_bytes(np.diff(edges), np.diff(block.dst_offsets[edges])), 0, 1)


def cut_evenly(lengths: Callable[[], Iterable[Ints]], rows: int, dst_bytes: int, max_bytes: int) -> Ints:
    """Cut a probe into as few parts as keep each within `max_bytes`, of about equal size.

    Args:
        lengths: gives the bytes of the destination addresses of its rows in order, piece by piece, as often as asked.
        rows, dst_bytes: how many rows it has, and their sum.

    Returns:
        int64[parts + 1], the row edges of the parts, `[0, …, rows]`.
    """
    parts = -(-measurements_bytes(rows, dst_bytes) // max_bytes)
    # Sizes of the rows leave out heads and padding, so a part may exceed the limit: then try with one part more.
    while True:
        wanted = (_ROW_BYTES * rows + dst_bytes) * np.arange(1, parts) // parts
        edges, before = [np.array([0])], [np.array([0])]
        row = total = 0
        for some in lengths():
            offsets = total + np.concatenate([[0], np.cumsum(some, dtype=np.int64)])
            # Bytes of the rows before each edge, without padding.
            sizes = _ROW_BYTES * np.arange(row, row + len(offsets)) + offsets
            low, high = np.searchsorted(wanted, [sizes[0], sizes[-1]])
            places = np.searchsorted(sizes, wanted[low:high], side="right") - 1
            edges.append(row + places)
            before.append(offsets[places])
            row, total = row + len(some), int(offsets[-1])
        found, first = np.unique(np.concatenate([*edges, [rows]]), return_index=True)
        offsets = np.concatenate([*before, [dst_bytes]])[first]
        if (measurements_bytes(np.diff(found), np.diff(offsets)) <= max_bytes).all():
            return found
        parts += 1


@dataclass(frozen=True)
class _Cuts:
    """Define where records start and end.

    Attributes:
        edges: int64[r + 1], rows of the block.
        probes: int64[r]; `parts`, `num_parts`: int64[r].
    """

    edges: Ints
    probes: Ints
    parts: Ints
    num_parts: Ints


def _cut(block: Block, max_bytes: int) -> _Cuts:
    starts = block.starts
    probes = np.arange(len(starts) - 1)
    large = measurements_bytes(np.diff(starts), np.diff(block.dst_offsets[starts])) > max_bytes
    if not large.any():
        return _Cuts(starts, probes, np.zeros_like(probes), np.ones_like(probes))
    edges: list[int] = []
    num_parts: list[int] = []
    for (start, stop), is_large in zip(pairwise(starts.tolist()), large.tolist(), strict=True):
        inner = _cut_one(np.diff(block.dst_offsets[start : stop + 1]), max_bytes) if is_large else [0]
        edges += [start + edge for edge in inner]
        num_parts.append(len(inner))
    counts = np.array(num_parts)
    parts = ranges(0, counts)
    return _Cuts(np.array([*edges, starts[-1]]), np.repeat(probes, counts), parts, np.repeat(counts, counts))


def _cut_one(lengths: Ints, max_bytes: int) -> list[int]:
    edges = cut_evenly(lambda: [lengths], len(lengths), int(lengths.sum()), max_bytes)
    return [int(edge) for edge in edges[:-1]]


class _Out:
    """Fill in the bytes of several records, one column after the other in all of them.

    Args:
        sizes: int64[r], bytes of each record.
    """

    def __init__(self, sizes: Ints) -> None:
        self.bytes = np.zeros(int(sizes.sum()), np.uint8)
        self._view = self.bytes.data
        # Where the next bytes of each record go.
        self.at = np.cumsum(sizes) - sizes

    def put(self, source: bytes | memoryview, begins: Ints, sizes: Ints) -> None:
        """Copy a slice of `source` into each record, padded."""
        view = self._view
        for to, begin, size in zip(self.at.tolist(), begins.tolist(), sizes.tolist(), strict=True):
            view[to : to + size] = source[begin : begin + size]
        self.at = self.at + padded(sizes)

    def put_words(self, words: Ints) -> None:
        """Copy a row of int64[r, words] into each record."""
        width = 8 * words.shape[1]
        rows = np.arange(len(words))
        self.put(_bytes(words.astype("<i8", copy=False)), width * rows, np.full(len(words), width))


def _encode(block: Block, cuts: _Cuts, blob_sizes: Ints, low: int, high: int) -> Records:
    """Encode the records `low` to `high`."""
    edges, probes = cuts.edges[low : high + 1], cuts.probes[low:high]
    starts, rows = edges[:-1], np.diff(edges)
    # Values that differ between records, for all of them at once: numpy's overhead is paid once a megabyte.
    addresses = [block.addresses[probe] for probe in probes.tolist()]
    texts = [address.encode() for address in addresses]
    text_bytes = np.array([len(text) for text in texts])
    dst_starts, dst_bytes = block.dst_offsets[starts], np.diff(block.dst_offsets[edges])
    ids = np.array([src_id(address) for address in addresses])

    # All words outside the columns of measurements. Together they decide the records' sizes.
    heads = heads_of(ids, text_bytes, blob_sizes, rows, dst_bytes)
    first, last = block.times[starts], block.times[edges[1:] - 1]
    middles = np.stack([rows, ((last - first) / 1e6).view(np.int64), first, last, text_bytes << 32], axis=1)
    tails = np.stack([cuts.parts[low:high], cuts.num_parts[low:high], np.full(len(rows), _END)], axis=1)
    own_words = frames().head_words + MIDDLE_WORDS + TAIL_WORDS - frames().measurements.num_words
    sizes = 8 * own_words + padded(text_bytes) + blob_sizes

    # Copy in the order of a record's bytes, one column of all records at a time, at 0.3 microseconds a slice.
    out = _Out(sizes)
    out.put_words(heads)
    out.put(_bytes(block.times), 8 * starts, 8 * rows)
    _put_ends(out, block, edges, dst_bytes)
    targets = block.targets.take(pa.array(block.dst_codes[edges[0] : edges[-1]]))
    out.put(memoryview(targets.buffers()[2]).cast("B"), dst_starts - dst_starts[0], dst_bytes)
    row_starts = starts - starts[0]
    out.put(_bytes(np.repeat(block.versions[probes], rows)), row_starts, rows)
    out.put(_bytes(block.rtts), 4 * starts, 4 * rows)
    out.put_words(np.full((len(rows), 1), _END))
    out.put_words(middles)
    out.put(b"".join(texts), np.cumsum(text_bytes) - text_bytes, text_bytes)
    out.put_words(tails)
    return Records(sizes, blob_sizes, out.bytes.data)


def _put_ends(out: _Out, block: Block, edges: Ints, dst_bytes: Ints) -> None:
    """Write the ends of the destination addresses, one more than rows, counted from the record's first address."""
    starts, rows = edges[:-1], np.diff(edges)
    ends = block.dst_offsets[edges[0] : edges[-1]] - np.repeat(block.dst_offsets[starts], rows)
    last = (out.at + 4 * rows) // 4
    out.put(_bytes(ends.astype("<i4")), 4 * (starts - starts[0]), 4 * rows)
    out.bytes.view("<i4")[last] = dst_bytes
    # With an even number of rows, the last end starts a word of its own.
    out.at = out.at + 8 * (rows % 2 == 0)


def heads_of(ids: Ints, text_bytes: Ints, blob_sizes: Ints, rows: Ints, dst_bytes: Ints) -> Ints:
    """Build everything before the times: head of the record, its first two columns, head of the measurements.

    Args:
        ids: int64[r], `src_id`.
        text_bytes, blob_sizes: int64[r], bytes of the source address and of the measurements.
        rows, dst_bytes: int64[r], measurements, and bytes of their destinations.

    Returns:
        int64[r, head_words].
    """
    # Sizes of all buffers: each data buffer follows an absent validity bitmap (0), or the ends of a text.
    outer = (0, 8, 0, 8, blob_sizes, 0, 4, 0, 8, 0, 8, 0, 8, 0, 8, text_bytes, 0, 4, 0, 4)
    inner = (0, 8 * rows, 0, 4 * (rows + 1), dst_bytes, 0, rows, 0, 4 * rows)
    columns = np.stack([ids, blob_sizes << 32], axis=1)
    return np.concatenate(
        [
            frames().record.heads(1, _matrix(outer)),
            columns,
            frames().measurements.heads(rows, _matrix(inner)),
        ],
        axis=1,
    )


def head_sizes(heads: Ints) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Return the arguments that `heads_of` would need to build these heads, if they are well-formed."""
    record, measurements = frames().record, frames().measurements
    own = record.num_words
    inner = heads[:, own + 2 :]
    ids, blob_sizes = heads[:, own], heads[:, own + 1] >> 32
    return (
        ids,
        record.buffer_sizes(heads, 15),
        blob_sizes,
        measurements.rows(inner),
        measurements.buffer_sizes(inner, 4),
    )


def _matrix(sizes: Sequence[Ints | int]) -> Ints:
    """Stack columns, each of which may be one number for all rows, into int64[r, columns]."""
    return np.stack(np.broadcast_arrays(*sizes), axis=1)


def _bytes(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).data.cast("B")


def _sample(schema: pa.Schema, rows: int) -> pa.RecordBatch:
    texts = [b"x" * (number % 7 + 1) for number in range(rows)]
    columns = []
    for field in schema:
        text = pa.types.is_string(field.type) or pa.types.is_binary(field.type)
        columns.append(pa.array(texts, pa.binary()).cast(field.type) if text else _zeros(field.type, rows))
    return pa.record_batch(columns, schema=schema)


def _zeros(kind: pa.DataType, rows: int) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(bytes(kind.bit_width // 8 * rows))])
