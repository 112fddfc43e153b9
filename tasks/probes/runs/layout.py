"""The layout of a run: a spool (`tasks.spool`) of the measurements of up to 8 million rows of input.

- A record is what one probe has in one stretch of the input; its position is the hash of the probe. A probe has
  several records in a run, in input order. The measurements of a record are in time order, ties in input order.
- An item is a measurement. Its version is that of the addresses.
- `extra` has the destination addresses, by blocks of about 2**17 items, so that an interval needs only those of its
  blocks: int64 number of blocks, `BLOCK[blocks]`, then for each block: ends int32[t + 1] and UTF-8, each padded to 8
  bytes. `dst` of an item is an index into the addresses of its block.

An address of a probe is in its record: none is longer than 45 characters.
"""

from __future__ import annotations

import numpy as np

# Part of the key of the first pass.
SPILL_FORMAT = 4

RECORD = np.dtype(
    [
        ("position", "<u8"),
        ("start", "<u8"),
        ("length", "<u4"),
        ("dst_bytes", "<u4"),  # of the destination addresses of its measurements
        ("src", "S45"),
        ("reserved", "V3"),
    ]
)
ITEM = np.dtype([("time", "<i8"), ("dst", "<i4"), ("rtt", "<f4")])
BLOCK = np.dtype([("first", "<u8"), ("at", "<u8"), ("texts", "<u4"), ("bytes", "<u4")])

# A run has at most so many rows, records, and bytes of destination addresses, counted for each batch it is merged
# from; each bounds what a merge holds. Only a single batch may exceed them.
RUN_LIMITS = {"rows": 1 << 23, "records": 1 << 19, "text_bytes": 32 << 20}
BLOCK_ITEMS = 1 << 17
