"""The bytes of a record, and their size before they are made.

A record is `schema message + record batch message + end of stream`, twice: around the measurements of a probe, and
around the one row that holds them. This equals what `pyarrow.ipc.new_stream` writes, at a third of its cost.

Every buffer handed to Arrow is exactly as long as its content. Arrow writes a sliced array's buffers up to the next
multiple of 8 bytes from what follows in memory, so a plain slice would carry bytes of the neighbouring probe, which
may be of the other split; a buffer of exact length is followed by zeros.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.probes import measurements_schema, record_schema
from tasks.probes.addresses import src_id

_MEASUREMENTS = measurements_schema()
_RECORD = record_schema()
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_MEASUREMENTS_HEAD = _MEASUREMENTS.serialize().to_pybytes()
_RECORD_HEAD = _RECORD.serialize().to_pybytes()


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
    dst_data: pa.Buffer
    versions: NDArray[np.int8]
    rtts: NDArray[np.float32]


def block_of(
    times: NDArray[np.int64], dst: pa.LargeStringArray, versions: NDArray[np.int8], rtts: NDArray[np.float32]
) -> Block:
    """A block of these columns, of equal length and without nulls."""
    _, offsets, data = dst.buffers()
    ends = np.frombuffer(offsets, np.int64)[dst.offset : dst.offset + len(dst) + 1]
    contiguous = np.ascontiguousarray
    return Block(contiguous(times), ends, data or pa.py_buffer(b""), contiguous(versions), contiguous(rtts))


def measurements_bytes(rows: int, dst_bytes: int) -> int:
    """Size of the `measurements` of `rows` rows whose destination addresses have `dst_bytes` bytes.

    Arrow pads every buffer to 8 bytes; the messages around them have one size.
    """
    return _FRAME_BYTES + sum(
        -(-size // 8) * 8 for size in (8 * rows, 4 * (rows + 1), dst_bytes, rows, 4 * rows)
    )


def encode_measurements(block: Block, start: int, stop: int) -> bytes:
    """The rows `start` to `stop` of a block as an IPC stream of one batch."""
    rows = stop - start
    first, last = int(block.dst_offsets[start]), int(block.dst_offsets[stop])
    offsets = (block.dst_offsets[start : stop + 1] - first).astype(np.int32)
    data = block.dst_data.slice(first, last - first)
    array = pa.Array.from_buffers
    batch = pa.RecordBatch.from_arrays(
        [
            array(_TIME, rows, [None, pa.py_buffer(block.times[start:stop])], 0),
            array(_STRING, rows, [None, pa.py_buffer(offsets), data], 0),
            array(_INT8, rows, [None, pa.py_buffer(block.versions[start:stop])], 0),
            array(_FLOAT, rows, [None, pa.py_buffer(block.rtts[start:stop])], 0),
        ],
        schema=_MEASUREMENTS,
    )
    return b"".join((_MEASUREMENTS_HEAD, batch.serialize(), _END))


def encode_record(
    address: str, measurements: bytes, rows: int, first: int, last: int, part: int, n_parts: int
) -> bytes:
    """One record.

    Args:
        address: the probe.
        measurements: as `encode_measurements` made them, of `rows` rows.
        first, last: times of the first and last measurement, microseconds.
    """
    source = address.encode()
    one = _one_value
    batch = pa.RecordBatch.from_arrays(
        [
            one(_INT64, "<q", src_id(address)),
            _one_text(_BINARY, measurements),
            one(_INT32, "<i", rows),
            one(_DOUBLE, "<d", (last - first) / 1e6),
            one(_TIME, "<q", first),
            one(_TIME, "<q", last),
            _one_text(_STRING, source),
            one(_INT32, "<i", part),
            one(_INT32, "<i", n_parts),
        ],
        schema=_RECORD,
    )
    return b"".join((_RECORD_HEAD, batch.serialize(), _END))


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
    sizes = 17 * np.arange(stop - start + 1) + (offsets[start : stop + 1] - offsets[start])
    while True:
        wanted = sizes[-1] * np.arange(1, parts) // parts
        inner = np.searchsorted(sizes, wanted, side="right") - 1
        edges = np.unique([start, *(start + inner), stop])
        if all(
            measurements_bytes(high - low, int(offsets[high] - offsets[low])) <= max_bytes
            for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        ):
            return [int(edge) for edge in edges]
        parts += 1


_TIME, _STRING, _BINARY = pa.timestamp("us"), pa.string(), pa.binary()
_INT8, _INT32, _INT64, _FLOAT, _DOUBLE = pa.int8(), pa.int32(), pa.int64(), pa.float32(), pa.float64()


def _one_value(kind: pa.DataType, form: str, value: float) -> pa.Array:
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(struct.pack(form, value))], 0)


def _one_text(kind: pa.DataType, value: bytes) -> pa.Array:
    offsets = pa.py_buffer(struct.pack("<ii", 0, len(value)))
    return pa.Array.from_buffers(kind, 1, [None, offsets, pa.py_buffer(value)], 0)


def _frame_bytes() -> int:
    """Bytes of a `measurements` stream around its buffers, found by making one."""
    one = Block(
        np.zeros(1, np.int64),
        np.array([0, 8]),
        pa.py_buffer(bytes(8)),
        np.zeros(1, np.int8),
        np.zeros(1, np.float32),
    )
    return len(encode_measurements(one, 0, 1)) - 5 * 8


_FRAME_BYTES = _frame_bytes()
