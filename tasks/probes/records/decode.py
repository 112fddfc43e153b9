"""Read a record back, and check everything that a single record must satisfy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from schemas.probes import END_RTT_MS, END_TIME_S, measurements_schema, record_schema
from tasks.probes.rows.addresses import families, family, src_id

Broken = tuple[str, str]
_END = pa.py_buffer(b"\xff\xff\xff\xff\x00\x00\x00\x00")


@dataclass(frozen=True)
class ProbeRecord:
    """Hold a record as read.

    Attributes:
        measurements: batch of `measurements_schema`; `blob_bytes`: size of its stream.
        times: int64[n], microseconds.
    """

    src_id: int
    src_addr: str
    measurements: pa.RecordBatch
    blob_bytes: int
    times: NDArray[np.int64]
    part: int
    n_parts: int


def read_record(data: bytes) -> tuple[ProbeRecord | None, list[Broken]]:
    """Return the record in `data`, or `None` if it cannot be read, and `(rule, detail)` for every fault."""
    try:
        outer, padding = _one_batch(pa.py_buffer(data), record_schema())
        if outer.num_rows != 1:
            return None, [("schema", f"a record must have one row, not {outer.num_rows}")]
        if any(column.null_count for column in outer.columns):
            return None, [("nulls", "a column of the record is null")]
        blob = outer.column(1)[0].as_buffer()
        inner, inner_padding = _one_batch(blob, measurements_schema())
        inner.validate(full=True)
        row = {name: outer.column(name)[0] for name in outer.schema.names if name != "measurements"}
        # A timestamp beyond year 9999 cannot become a Python object; integers can.
        first, last = row["first_timestamp"].value, row["last_timestamp"].value
        address = row["src_addr"].as_py()
    except (pa.ArrowException, OSError, ValueError) as error:
        return None, [("schema", str(error).partition("\n")[0])]
    if any(column.null_count for column in inner.columns):
        return None, [("nulls", "a measurement has a null")]
    times = inner.column(0).view(pa.int64()).to_numpy()
    record = ProbeRecord(
        src_id=row["src_id"].as_py(),
        src_addr=address,
        measurements=inner,
        blob_bytes=len(blob),
        times=times,
        part=row["part"].as_py(),
        n_parts=row["n_parts"].as_py(),
    )
    broken = [("padding", "bytes between the buffers are not zero")] if padding or inner_padding else []
    broken += _rows_broken(record)
    if row["n_measurements"].as_py() != inner.num_rows or not inner.num_rows:
        detail = f"n_measurements is {row['n_measurements'].as_py()}, but there are {inner.num_rows}"
        return record, [*broken, ("count", detail)]
    span = (int(times[-1]) - int(times[0])) / 1e6
    if (first, last, row["time_span_seconds"].as_py()) != (int(times[0]), int(times[-1]), span):
        broken.append(
            ("span", "first_timestamp, last_timestamp or time_span_seconds does not match the measurements")
        )
    return record, broken


def _rows_broken(record: ProbeRecord) -> Iterator[Broken]:
    if record.src_id != src_id(record.src_addr):
        yield "src_id", f"src_id {record.src_id} does not match {record.src_addr!r}"
    if not 0 <= record.part < record.n_parts:
        yield "parts", f"part {record.part} of {record.n_parts} is not a valid part"
    times = record.times
    if (times[1:] < times[:-1]).any():
        yield "order", "measurements are not in time order"
    if ((times < 0) | (times >= END_TIME_S * 10**6)).any():
        yield "time", "a time is before 1970 or after 2106"
    source = family(record.src_addr.encode())
    encoded = record.measurements.column(1).dictionary_encode()
    found = families(encoded.dictionary)[encoded.indices.to_numpy()]
    versions = record.measurements.column(2).to_numpy()
    if not source or (found != source).any() or (versions != source).any():
        yield "ip_version", "an address is malformed, or not of the stated version"
    rtts = record.measurements.column(3).to_numpy()
    if not (rtts < np.float32(END_RTT_MS)).all():
        yield "rtt", "a round trip time is NaN or too large"


def _one_batch(data: pa.Buffer, schema: pa.Schema) -> tuple[pa.RecordBatch, bool]:
    """Return the only batch of an IPC stream, and whether any byte outside its buffers is not zero."""
    source = pa.BufferReader(data)
    messages = pa.ipc.MessageReader.open_stream(source)
    try:
        found = pa.ipc.read_schema(messages.read_next_message())
        message = messages.read_next_message()
    except StopIteration:
        raise pa.ArrowInvalid("the stream ends before its batch") from None
    if found != schema:
        raise pa.ArrowInvalid(f"the schema is {', '.join(f'{f.name}: {f.type}' for f in found)}")
    batch = pa.ipc.read_record_batch(message, found)
    try:
        messages.read_next_message()
    except StopIteration:
        pass
    else:
        raise pa.ArrowInvalid("the stream contains more than one batch")
    if source.tell() != len(data) or data.slice(len(data) - 8) != _END:
        raise pa.ArrowInvalid("the stream does not end where its bytes do")
    return batch, _has_stray_bytes(batch, message.body)


def _has_stray_bytes(batch: pa.RecordBatch, body: pa.Buffer) -> bool:
    """Return whether any byte of a message's body that is not part of a value is not zero."""
    whole = np.frombuffer(body, np.uint8)
    used = []
    for column in batch.columns:
        buffers = column.buffers()[1:]
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            sizes = [4 * (len(column) + 1), int(pc.sum(pc.binary_length(column)).as_py() or 0)]
        else:
            sizes = [column.type.bit_width // 8 * len(column)]
        used += [
            (buffer.address - body.address, size)
            for buffer, size in zip(buffers, sizes, strict=True)
            if buffer is not None and size
        ]
    end = 0
    for start, size in sorted(used):
        if whole[end:start].any():
            return True
        end = start + size
    return bool(whole[end:].any())
