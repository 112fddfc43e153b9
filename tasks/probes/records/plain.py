"""Read short records without Arrow: the sizes in a head tell where the columns are.

The heads of records that `encode.py` writes differ only in sizes. If a head equals, to the byte, the one that its
sizes produce, the columns are slices at known places, and a few indexed look-ups read the measurements of many
records. Opening the two Arrow streams of a record and joining the batches took 15 microseconds each, a quarter of
what a record of 26 measurements cost the loader. Arrow reads all other records, and all records if the layout of its
release is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.errors import WorkError
from schemas.probes import measurements_schema
from tasks.packing.arrays import ranges
from tasks.probes.records.encode import (
    MIDDLE_WORDS,
    TAIL_WORDS,
    frames,
    head_sizes,
    heads_of,
    measurements_bytes,
)
from tasks.probes.records.frames import padded

# From here on a copy costs more than opening the streams.
_LONG_BYTES = 1 << 16
_END = 0xFFFFFFFF

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PlainRows(Sequence[dict[str, Any]]):
    """Hold records as a sequence of rows with `src_addr` and `measurements`, and access many rows at once.

    Attributes:
        sizes: int64[r], measurements of each record.
        addresses: addresses of their probes.
        data: uint8, all records one after the other.
        times_at: int64[r], indices into `data` as int64; `ends_at`: as int32; `dst_at`: bytes; `rtts_at`: float32.
    """

    sizes: Ints
    addresses: list[str]
    data: NDArray[np.uint8]
    times_at: Ints
    ends_at: Ints
    dst_at: Ints
    rtts_at: Ints

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        time, dst, rtt = self.take(np.full(self.sizes[index], index), np.arange(self.sizes[index]))
        versions = np.full(len(time), 6 if ":" in self.addresses[index] else 4, np.int8)
        columns = [pa.array(time).view(pa.timestamp("us")), dst, pa.array(versions), pa.array(rtt)]
        batch = pa.record_batch(columns, schema=measurements_schema())
        return {"src_addr": self.addresses[index], "measurements": batch}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[index] for index in range(len(self)))

    def take(self, rows: Ints, positions: Ints) -> tuple[Ints, pa.StringArray, NDArray[np.float32]]:
        """Read times in microseconds, destinations and round trips of some measurements.

        Args:
            rows, positions: int64[n], the row of each and its place in it.
        """
        ends = self.data.view("<i4")
        at = self.ends_at[rows] + positions
        starts, lengths = ends[at], ends[at + 1] - ends[at]
        offsets = np.zeros(len(rows) + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        octets = ranges(self.dst_at[rows] + starts, lengths)
        dst = pa.StringArray.from_buffers(len(rows), pa.py_buffer(offsets), pa.py_buffer(self.data[octets]))
        times = self.data.view("<i8")[self.times_at[rows] + positions]
        return times, dst, self.data.view("<f4")[self.rtts_at[rows] + positions]


def plain_rows(records: Sequence[bytes]) -> PlainRows | None:
    """Return the rows of records, or `None` unless all of them are short and laid out as we write them."""
    try:
        head_words = frames().head_words
    except WorkError:  # the layout is unknown
        return None
    lengths = np.array([len(record) for record in records])
    words_of_each = head_words + MIDDLE_WORDS + TAIL_WORDS
    if (
        not len(records)
        or lengths.max() > _LONG_BYTES
        or lengths.min() < 8 * words_of_each
        or (lengths % 8).any()
    ):
        return None
    # Read the sizes from the heads. They may be anything, so bound them before they are used as places.
    data = np.frombuffer(b"".join(records), np.uint8)
    words = data.view("<i8")
    begins = np.cumsum(lengths) - lengths
    heads = words[(begins // 8)[:, None] + np.arange(head_words)]
    ids, text_bytes, blob_bytes, rows, dst_bytes = head_sizes(heads)
    for sizes in (text_bytes, blob_bytes, rows, dst_bytes):
        if (sizes < 0).any() or (sizes > lengths).any():
            return None
    # The sizes tell where every column is; the record must end just where the last of them does.
    dst_at = begins + 8 * head_words + 8 * rows + padded(4 * (rows + 1))
    rtts_at = dst_at + padded(dst_bytes) + padded(rows)
    middles = rtts_at + padded(4 * rows) + 8
    texts = middles + 8 * MIDDLE_WORDS
    stops = texts + padded(text_bytes) + 8 * TAIL_WORDS
    if (
        (stops != begins + lengths).any()
        or (blob_bytes != measurements_bytes(rows, dst_bytes)).any()
        or (rows == 0).any()
        or (heads != heads_of(ids, text_bytes, blob_bytes, rows, dst_bytes)).any()
        or (words[middles // 8 - 1] != _END).any()
        or (words[stops // 8 - 1] != _END).any()
        or (words[middles // 8] & 0xFFFFFFFF != rows).any()
        or (words[texts // 8 - 1] != text_bytes << 32).any()
    ):
        return None
    ends_at = (begins + 8 * head_words + 8 * rows) // 4
    if not _ends_are_good(data.view("<i4"), ends_at, rows, dst_bytes):
        return None
    slices = zip(texts.tolist(), (texts + text_bytes).tolist(), strict=True)
    view = data.data
    try:
        addresses = [str(view[low:high], "utf-8") for low, high in slices]
    except UnicodeDecodeError:
        return None
    return PlainRows(rows, addresses, data, (begins // 8) + head_words, ends_at, dst_at, rtts_at // 4)


def _ends_are_good(ends: NDArray[np.int32], at: Ints, rows: Ints, dst_bytes: Ints) -> bool:
    """Return whether the ends of the destinations start at 0, never fall, and stop at the end of their bytes."""
    places = ranges(at, rows)
    return bool(
        (ends[at] == 0).all()
        and (ends[at + rows] == dst_bytes).all()
        and (ends[places + 1] >= ends[places]).all()
    )
