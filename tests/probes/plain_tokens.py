"""Tokens of measurements read and written one at a time, from the format's table, without our encoder."""

from __future__ import annotations

import datetime
import ipaddress
import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

EPOCH = datetime.datetime(1970, 1, 1)


class Read(NamedTuple):
    """A measurement as its tokens tell it."""

    src_addr: str
    dst_addr: str
    rtt_us: int | None
    seconds: int | None


def round_trip(rtt_ms: float) -> tuple[int, int]:
    """The exponent and mantissa of a float32 in milliseconds."""
    microseconds = max(1.0, rtt_ms * 1000 * (1 + 2**-23))
    exponent = next(e for e in range(99) if microseconds / 2**e < 2048)
    return (exponent, math.floor(microseconds / 2**exponent)) if exponent < 32 else (31, 2047)


def encode_dict(measurement: Mapping[str, Any], before: int | None = None) -> list[int]:
    """Tokens of a dict `{src_addr, dst_addr, ip_version, rtt, event_time}`: source, destination, result, time.

    Args:
        before: seconds of the timestamped measurement before, if there is one in the context.
    """
    six = measurement["ip_version"] == 6
    tokens = [0]
    for name, head in (("src_addr", 1), ("dst_addr", 3)):
        tokens += [head + six, *(11 + byte for byte in ipaddress.ip_address(measurement[name]).packed)]
    if measurement["rtt"] < 0:
        tokens += [10]
    else:
        exponent, mantissa = round_trip(measurement["rtt"])
        tokens += [8, *(11 + byte for byte in (exponent * 2048 + mantissa).to_bytes(2, "big"))]
    seconds = (measurement["event_time"] - EPOCH) // datetime.timedelta(seconds=1)
    if before is None:
        return [*tokens, 5, *(11 + byte for byte in seconds.to_bytes(8, "big"))]
    head, size = (6, 1) if seconds - before < 256 else (7, 4)
    return [*tokens, head, *(11 + byte for byte in (seconds - before).to_bytes(size, "big"))]


def encode_context(measurements: Iterable[Mapping[str, Any]]) -> list[int]:
    """Tokens of measurements in time order, all with timestamps."""
    tokens: list[int] = []
    before: int | None = None
    for measurement in measurements:
        tokens += encode_dict(measurement, before)
        before = (measurement["event_time"] - EPOCH) // datetime.timedelta(seconds=1)
    return tokens


def read_context(tokens: list[int]) -> Iterator[Read]:
    """The measurements of one context: a START is the only 0, because bytes are 11 to 266."""
    starts = [at for at, token in enumerate(tokens) if token == 0]
    assert starts[:1] == [0]
    clock = 0
    for start, stop in pairwise([*starts, len(tokens)]):
        found: dict[str, Any] = {"seconds": None}
        at = start + 1
        while at < stop:
            head = tokens[at]
            size = {1: 4, 2: 16, 3: 4, 4: 16, 5: 8, 6: 1, 7: 4, 8: 2, 10: 0}[head]
            content = bytes(token - 11 for token in tokens[at + 1 : at + 1 + size])
            number = int.from_bytes(content, "big")
            if head <= 4:
                found["src_addr" if head <= 2 else "dst_addr"] = str(ipaddress.ip_address(content))
            elif head <= 7:
                clock = found["seconds"] = number if head == 5 else clock + number
            else:
                found["rtt_us"] = None if head == 10 else (number % 2048) * 2 ** (number // 2048)
            at += 1 + size
        assert at == stop
        yield Read(**found)
