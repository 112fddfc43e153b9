"""Find the usable rows, and the reason for every row that is not usable.

==================  ============================================================================
reason              the row
==================  ============================================================================
null_time           has no `event_time`
time_before_1970    is older than the epoch
time_after_2106     is 2**32 seconds or more after it
null_src_addr       has no source; `null_dst_addr` likewise
bad_src_addr        has a source that is not an IPv4 or IPv6 address; `bad_dst_addr` likewise
null_rtt            has no round trip time; a failed measurement has a negative one
nan_rtt             has a round trip time that is not a number
huge_rtt            took 2**32 microseconds or more, or is negative infinity
ip_version          has a version that is not the family of both addresses
==================  ============================================================================

A null `ip_version` is not rejected: it is filled in from the addresses, which must agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.probes import END_RTT_MS, END_TIME_S
from tasks.probes.rows.values import to_numpy

_END_TIME_US = END_TIME_S * 10**6
# A reject shows no more of a text, which may be long.
_SHOWN_BYTES = 500
_LISTED_ROWS = 100_000


@dataclass(frozen=True)
class Columns:
    """Hold the columns of a run as arrays of n rows.

    Attributes:
        times: int64, microseconds since 1970; -1 for a null.
        src_codes, dst_codes: int32, indices into the run's dictionaries; the dictionary's length for a null.
        versions: int8, nulls filled in.
        rtts: float32, NaN for a null.
        usable: bool; a row with a null is not usable, unless only its version is null.
        filled: how many null versions of usable rows were filled in.
    """

    times: NDArray[np.int64]
    src_codes: NDArray[np.int32]
    dst_codes: NDArray[np.int32]
    versions: NDArray[np.int8]
    rtts: NDArray[np.float32]
    usable: NDArray[np.bool_]
    filled: int


def screen(rows: pa.RecordBatch, src_families: NDArray[np.int8], dst_families: NDArray[np.int8]) -> Columns:
    """Decide for every row of a run whether it is usable.

    Args:
        rows: batch of `reading.CANONICAL`.
        src_families, dst_families: int8[entries + 1], see `addresses.families`.
    """
    time, src, dst, version, rtt = rows.columns
    times = to_numpy(time, -1)
    rtts = to_numpy(rtt, float("nan"))
    src_codes, dst_codes = _codes(src), _codes(dst)
    family = dst_families[dst_codes]
    usable = (src_families[src_codes] == family) & (family > 0)
    versions = to_numpy(version, 0)
    filled = 0
    if version.null_count:
        unknown = version.is_null().to_numpy(zero_copy_only=False)
        versions = np.where(unknown, family, versions)
    usable &= versions == family
    usable &= (times >= 0) & (times < _END_TIME_US)
    # False for NaN. A negative value only says that the measurement failed; infinity says nothing.
    usable &= (rtts < np.float32(END_RTT_MS)) & (rtts > -np.inf)
    if version.null_count:
        filled = int((unknown & usable).sum())
    return Columns(times, src_codes, dst_codes, versions, rtts, usable, filled)


def unusable(
    rows: pa.RecordBatch, columns: Columns, src_families: NDArray[np.int8], dst_families: NDArray[np.int8]
) -> Iterator[tuple[int, str, str]]:
    """Yield `(row, reason, detail)` for every row that is not usable, in order."""
    bad = np.flatnonzero(~columns.usable)
    for first in range(0, len(bad), _LISTED_ROWS):
        some = bad[first : first + _LISTED_ROWS]
        taken = rows.take(pa.array(some))
        times, versions, rtts = (
            taken.column(name).to_pylist() for name in ("event_time", "ip_version", "rtt")
        )
        sources, targets = (_texts(taken.column(name)) for name in ("src_addr", "dst_addr"))
        found = zip(src_families[columns.src_codes[some]], dst_families[columns.dst_codes[some]], strict=True)
        listed = zip(some.tolist(), times, sources, targets, versions, rtts, found, strict=True)
        for row, time, source, target, version, rtt, families in listed:
            both = int(families[0]), int(families[1])
            yield row, *why_not(time, source, target, version, rtt, both)


def why_not(
    time: int | None,
    src: bytes | None,
    dst: bytes | None,
    version: int | None,
    rtt: float | None,
    families: tuple[int, int],
) -> tuple[str, str]:
    """Return reason and detail for one row that is not usable.

    Args:
        families: of its source and destination; 0 if the text is not an address.

    >>> why_not(0, b"192.0.2.1", b"nowhere", 4, 1.0, (4, 0))
    ('bad_dst_addr', "dst_addr is no IPv4 or IPv6 address: b'nowhere'")
    """
    if time is None:
        return "null_time", "event_time is null"
    if time < 0:
        return "time_before_1970", f"event_time is {time} microseconds after 1970"
    if time >= _END_TIME_US:
        return "time_after_2106", f"event_time is {time} microseconds after 1970, at most {_END_TIME_US - 1}"
    for name, text, family in (("src_addr", src, families[0]), ("dst_addr", dst, families[1])):
        if text is None:
            return f"null_{name}", f"{name} is null"
        if not family:
            return f"bad_{name}", f"{name} is no IPv4 or IPv6 address: {text[:_SHOWN_BYTES]!r}"
    if rtt is None:
        return "null_rtt", "rtt is null; a failed measurement has a negative rtt"
    if rtt != rtt:
        return "nan_rtt", "rtt is NaN; a failed measurement has a negative rtt"
    if rtt >= np.float32(END_RTT_MS) or rtt == -np.inf:
        return "huge_rtt", f"rtt is {rtt} ms, not a finite number below {END_RTT_MS:.0f}"
    stated = "null" if version is None else "not 4 or 6" if version not in (4, 6) else str(version)
    return "ip_version", f"ip_version is {stated}, src_addr is IPv{families[0]}, dst_addr is IPv{families[1]}"


def _texts(column: pa.DictionaryArray) -> list[bytes | None]:
    # Not as strings, because the bytes may not be UTF-8.
    texts: list[bytes | None] = column.dictionary.cast(pa.binary()).to_pylist()
    # Each text once, however many rows have it.
    return [None if place is None else texts[place] for place in column.indices.to_pylist()]


def _codes(column: pa.DictionaryArray) -> NDArray[np.int32]:
    return to_numpy(column.indices, len(column.dictionary))
