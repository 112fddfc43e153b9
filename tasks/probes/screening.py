"""Which rows can be used, and the reason for every one that cannot.

==================  ============================================================================
reason              the row
==================  ============================================================================
null_time           has no `event_time`
time_before_1970    is older than the epoch
time_after_2106     is 2**32 seconds or more after it
null_src_addr       has no source; `null_dst_addr` likewise
bad_src_addr        has a source that is no IPv4 or IPv6 address; `bad_dst_addr` likewise
null_rtt            has no round trip time; a failed measurement has a negative one
nan_rtt             has a round trip time that is not a number
huge_rtt            took 2**32 microseconds or more
ip_version          has a version that is not the family of both addresses
==================  ============================================================================

A null `ip_version` is not rejected: it is filled in from the addresses, which must agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from schemas.probes import END_RTT_MS, END_TIME_S

_END_TIME_US = END_TIME_S * 10**6


@dataclass(frozen=True)
class Columns:
    """The columns of a run as arrays of n rows; nulls are `valid`'s business.

    Attributes:
        times: int64, microseconds since 1970.
        src_codes, dst_codes: int32, into the run's dictionaries; the dictionary's length for a null.
        versions: int8, nulls filled in.
        rtts: float32, NaN for a null.
        usable: bool.
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
    """Look at every row of a run.

    Args:
        rows: of the schema `reading.CANONICAL`.
        src_families, dst_families: int8[entries + 1], see `addresses.families`.
    """
    time, src, dst, version, rtt = rows.columns
    times = _numpy(time, -1)
    rtts = _numpy(rtt, float("nan"))
    src_codes, dst_codes = _codes(src), _codes(dst)
    family = dst_families[dst_codes]
    usable = (src_families[src_codes] == family) & (family > 0)
    versions = _numpy(version, 0)
    filled = 0
    if version.null_count:
        unknown = version.is_null().to_numpy(zero_copy_only=False)
        versions = np.where(unknown, family, versions)
    usable &= versions == family
    usable &= (times >= 0) & (times < _END_TIME_US)
    # False for NaN. Whatever is negative says no more than that the measurement failed.
    usable &= rtts < np.float32(END_RTT_MS)
    if version.null_count:
        filled = int((unknown & usable).sum())
    return Columns(times, src_codes, dst_codes, versions, rtts, usable, filled)


def why_not(rows: pa.RecordBatch, row: int, families: tuple[int, int]) -> tuple[str, str]:
    """Reason and detail for one row that is not usable.

    Args:
        families: of its source and destination, 0 for what is no address.
    """
    time, src, dst, version, rtt = (column[row] for column in rows.columns)
    micros = time.as_py()
    if micros is None:
        return "null_time", "event_time is null"
    if micros < 0:
        return "time_before_1970", f"event_time is {micros} microseconds after 1970"
    if micros >= _END_TIME_US:
        return (
            "time_after_2106",
            f"event_time is {micros} microseconds after 1970, at most {_END_TIME_US - 1}",
        )
    for name, scalar, family in (("src_addr", src, families[0]), ("dst_addr", dst, families[1])):
        text = _bytes(scalar)
        if text is None:
            return f"null_{name}", f"{name} is null"
        if not family:
            return f"bad_{name}", f"{name} is no IPv4 or IPv6 address: {text!r}"
    value = rtt.as_py()
    if value is None:
        return "null_rtt", "rtt is null; a failed measurement has a negative rtt"
    if value != value:
        return "nan_rtt", "rtt is NaN; a failed measurement has a negative rtt"
    if value >= np.float32(END_RTT_MS):
        return "huge_rtt", f"rtt is {value} ms, not below {END_RTT_MS:.0f}"
    found = version.as_py()
    stated = "null" if found is None else "not 4 or 6" if found not in (4, 6) else str(found)
    return "ip_version", f"ip_version is {stated}, src_addr is IPv{families[0]}, dst_addr is IPv{families[1]}"


def _bytes(scalar: Any) -> bytes | None:
    value = scalar.value
    return value.cast(pa.binary()).as_py() if value is not None and value.is_valid else None


def _numpy(column: pa.Array, null: Any) -> NDArray[Any]:
    if column.null_count:
        column = pc.fill_null(column, null)
    values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return values


def _codes(column: pa.DictionaryArray) -> NDArray[np.int32]:
    return _numpy(column.indices, len(column.dictionary))
