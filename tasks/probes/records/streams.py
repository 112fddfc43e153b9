"""Read many Arrow IPC streams of one batch each at once.

A stream is a schema message, a batch message and an end mark. Opening one costs 15-35 us, most of it for the schema.
If streams start with the same schema message, their batch messages can be joined into one stream, and cost 2-3 us
each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from schemas.errors import InputError

_END = b"\xff\xff\xff\xff\0\0\0\0"
# From this size on, a copy costs more than a schema.
_LONG_BYTES = 2**16


def read_batches(
    streams: Sequence[bytes], schema: pa.Schema, where: Callable[[int], str]
) -> list[pa.RecordBatch]:
    """Read the batch of each stream.

    Args:
        schema: the schema that every stream must have; metadata does not matter.
        where: returns a stream's name for errors, by its index.

    Raises:
        InputError: `bad_record`: a stream is damaged, has not exactly one batch, or has other columns.
    """
    head = schema.serialize().to_pybytes()
    plain = [place for place, stream in enumerate(streams) if _is_plain(stream, head)]
    batches = dict(zip(plain, _read_joined([streams[place] for place in plain], head), strict=False))
    for place, stream in enumerate(streams):
        if place not in batches:
            batches[place] = _read_one(stream, schema, where, place)
    return [batches[place] for place in range(len(streams))]


def _read_joined(streams: Sequence[bytes], head: bytes) -> list[pa.RecordBatch]:
    """Read all batches; return `[]` if a stream is bad, as reading them one by one will show which."""
    body = slice(len(head), -len(_END))
    try:
        batches = list(pa.ipc.open_stream(b"".join([head, *[stream[body] for stream in streams], _END])))
    except (pa.ArrowException, OSError):
        return []
    return batches if len(batches) == len(streams) else []


def _is_plain(stream: bytes, head: bytes) -> bool:
    return len(stream) < _LONG_BYTES and stream.startswith(head) and stream.endswith(_END)


def _read_one(stream: bytes, schema: pa.Schema, where: Callable[[int], str], place: int) -> pa.RecordBatch:
    try:
        with pa.ipc.open_stream(stream) as reader:
            found = reader.schema
            if not found.equals(schema):
                message = f"columns are {_columns(found)}; expected {_columns(schema)}"
                raise InputError(message, code="bad_record", where=where(place))
            batches = [batch.replace_schema_metadata(None) for batch in reader]
    except (pa.ArrowException, OSError, TypeError) as error:
        raise InputError(f"not an Arrow stream: {error}", code="bad_record", where=where(place)) from error
    if len(batches) != 1:
        raise InputError(f"{len(batches)} batches; expected one", code="bad_record", where=where(place))
    return batches[0]


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
