"""The layout of a spool, a little-endian file in which records lie in the order of their positions.

=============  ====================================  =========================================================
section        content                               meaning
=============  ====================================  =========================================================
payload        `payload dtype[items]`                what the records stand for, in the order of the records
records        `record dtype[records]`               sorted by position; equal positions in the order they came
index          `INDEX[entries]`                      every `stride`-th record, and the sums of what lies before it
histogram      `uint32[2, 4096]`                     items by the upper 12 bits of the position: all, distinct
extra          bytes                                 what the items refer to, if anything; the writer's own
footer         `FOOTER`                              counts and sizes of the sections before it
=============  ====================================  =========================================================

A *position* is a 64-bit hash, so splits, shards and samples are intervals of positions. A record has at least the
fields `position uint64`, `start uint64` and `length uint32`: its items are `payload[start : start + length]`. Records
that stand for the same items may share them; "distinct" counts shared items once.

A spool of up to 4,096 records has no histogram: its index has every record. Every section begins at a multiple of 8
bytes.
"""

from __future__ import annotations

import numpy as np

MAGIC = b"GMspool1"
# Positions are below this.
RING = 1 << 64
BUCKET_BITS = 12
BUCKETS = 1 << BUCKET_BITS
# The index of a larger spool has between half as many entries and this many.
MOST_ENTRIES = 1 << 14

INDEX = np.dtype([("position", "<u8"), ("items", "<u8"), ("distinct", "<u8")])
FOOTER = np.dtype(
    [
        ("magic", "S8"),
        ("items", "<u8"),
        ("records", "<u8"),
        ("entries", "<u8"),
        ("stride", "<u8"),
        ("payload_size", "<u4"),
        ("record_size", "<u4"),
        ("buckets", "<u4"),
        ("extra_words", "<u4"),  # of 8 bytes
    ]
)


def padded(size: int) -> int:
    """Round a size in bytes up to a multiple of 8.

    >>> padded(0), padded(1), padded(8)
    (0, 8, 8)
    """
    return -(-size // 8) * 8


def stride_of(records: int) -> int:
    """Return how many records an entry of the index stands for: 1 up to `MOST_ENTRIES`, then a power of two.

    >>> stride_of(0), stride_of(16384), stride_of(16385), stride_of(100_000)
    (1, 1, 2, 8)
    """
    stride = 1
    while records > stride * MOST_ENTRIES:
        stride *= 2
    return stride
