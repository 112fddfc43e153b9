"""The bytes of a record, and their size before they are made.

A record is `schema message + record batch message + end of stream`, twice: around the measurements of a probe, and
around the one row that holds them. It equals, byte for byte, what `pyarrow.ipc.new_stream` writes from arrays of
their own; the heads come from `frames`, the bodies are slices of the columns of many probes.

Bytes that pad a buffer to a multiple of 8 are written here, as zeros. Arrow takes them from what follows a slice in
memory: they would be bytes of the neighbouring probe, which may be of the other split.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.probes import measurements_schema, record_schema
from tasks.probes.addresses import src_id
from tasks.probes.frames import Frame, padded

_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_PADS = tuple(bytes(count) for count in range(8))
# Of a measurement: time, end of its address, version, round trip time; the address comes on top.
_ROW_BYTES = 17

Piece = bytes | memoryview


@dataclass(frozen=True)
class Block:
    """Measurements of several probes, in order of record and time.

    Attributes:
        times: int64[n], microseconds.
        dst_offsets: int64[n + 1] into `dst_data`, the bytes of all destination addresses.
        versions: int8[n]. rtts: float32[n].
    """

    times: NDArray[np.int64]
    dst_offsets: NDArray[np.int64]
    dst_data: memoryview
    versions: NDArray[np.int8]
    rtts: NDArray[np.float32]


def block_of(
    times: NDArray[np.int64], dst: pa.LargeStringArray, versions: NDArray[np.int8], rtts: NDArray[np.float32]
) -> Block:
    """A block of these columns, of equal length and without nulls."""
    _, offsets, data = dst.buffers()
    ends = np.frombuffer(offsets, np.int64)[dst.offset : dst.offset + len(dst) + 1]
    contiguous = np.ascontiguousarray
    return Block(
        contiguous(times), ends, memoryview(data or b"").cast("B"), contiguous(versions), contiguous(rtts)
    )


def measurements_bytes(rows: int, dst_bytes: int) -> int:
    """Size of the `measurements` of `rows` rows whose destination addresses have `dst_bytes` bytes."""
    body = 8 * rows + padded(4 * (rows + 1)) + padded(dst_bytes) + padded(rows) + padded(4 * rows)
    return len(_MEASUREMENTS_HEAD) + _MEASUREMENTS.head_bytes() + body + len(_END)


def measurement_pieces(block: Block, start: int, stop: int) -> list[Piece]:
    """The rows `start` to `stop` of a block as an IPC stream of one batch, in pieces to be joined."""
    rows = stop - start
    ends = block.dst_offsets[start : stop + 1]
    first, last = int(ends[0]), int(ends[-1])
    sizes = (0, 8 * rows, 0, 4 * (rows + 1), last - first, 0, rows, 0, 4 * rows)
    return [
        _MEASUREMENTS_HEAD,
        _MEASUREMENTS.head(rows, sizes),
        block.times[start:stop].data.cast("B"),
        (ends - first).astype(np.int32).data.cast("B"),
        _PADS[-sizes[3] % 8],
        block.dst_data[first:last],
        _PADS[-sizes[4] % 8],
        block.versions[start:stop].data.cast("B"),
        _PADS[-rows % 8],
        block.rtts[start:stop].data.cast("B"),
        _PADS[-sizes[8] % 8],
        _END,
    ]


def encode_record(
    address: str, measurements: Sequence[Piece], rows: int, first: int, last: int, part: int, n_parts: int
) -> bytes:
    """One record.

    Args:
        address: the probe.
        measurements: as `measurement_pieces` made them, of `rows` rows.
        first, last: times of the first and last measurement, microseconds.
    """
    source = address.encode()
    size = sum(map(len, measurements))
    sizes = (0, 8, 0, 8, size, 0, 4, 0, 8, 0, 8, 0, 8, 0, 8, len(source), 0, 4, 0, 4)
    return b"".join(
        (
            _RECORD_HEAD,
            _RECORD.head(1, sizes),
            _BEFORE.pack(src_id(address), 0, size),
            *measurements,
            _PADS[-size % 8],
            _BETWEEN.pack(rows, (last - first) / 1e6, first, last, 0, len(source)),
            source,
            _PADS[-len(source) % 8],
            _AFTER.pack(part, n_parts),
            _END,
        )
    )


def cut_evenly(block: Block, start: int, stop: int, max_bytes: int) -> list[int]:
    """Row edges of a probe's parts: as few as keep each within `max_bytes`, of about equal size.

    Returns:
        `[start, …, stop]`.
    """
    offsets = block.dst_offsets
    total = measurements_bytes(stop - start, int(offsets[stop] - offsets[start]))
    parts = -(-total // max_bytes)
    if parts == 1:
        return [start, stop]
    # What rows `start` to `i` take, padding aside.
    sizes = _ROW_BYTES * np.arange(stop - start + 1) + (offsets[start : stop + 1] - offsets[start])
    while True:
        wanted = sizes[-1] * np.arange(1, parts) // parts
        inner = np.searchsorted(sizes, wanted, side="right") - 1
        edges: list[int] = np.unique([start, *(start + inner), stop]).tolist()
        if all(
            measurements_bytes(high - low, int(offsets[high] - offsets[low])) <= max_bytes
            for low, high in pairwise(edges)
        ):
            return edges
        parts += 1


# src_id, the offsets of `measurements`; then what follows them up to the address, 4-byte values padded to 8.
_BEFORE = struct.Struct("<qii")
_BETWEEN = struct.Struct("<i4xdqqii")
_AFTER = struct.Struct("<i4xi4x")
_MEASUREMENTS_HEAD = measurements_schema().serialize().to_pybytes()
_RECORD_HEAD = record_schema().serialize().to_pybytes()


def _sample(schema: pa.Schema, rows: int) -> pa.RecordBatch:
    texts = [b"x" * (number % 7 + 1) for number in range(rows)]
    columns = []
    for field in schema:
        text = pa.types.is_string(field.type) or pa.types.is_binary(field.type)
        columns.append(pa.array(texts, pa.binary()).cast(field.type) if text else _zeros(field.type, rows))
    return pa.record_batch(columns, schema=schema)


def _zeros(kind: pa.DataType, rows: int) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(bytes(kind.bit_width // 8 * rows))])


_MEASUREMENTS = Frame(_sample(measurements_schema(), 1003), _sample(measurements_schema(), 17))
_RECORD = Frame(_sample(record_schema(), 1003), _sample(record_schema(), 17))
