"""Turn measurements into tokens and back.

A measurement is START, followed by its source, destination, result and timestamp blocks in any order:

=====  ==================  ===================================================================
id     token               followed by
=====  ==================  ===================================================================
0      MEASUREMENT_START   the blocks
1, 2   SRC_IPV4, SRC_IPV6  4 or 16 bytes
3, 4   DST_IPV4, DST_IPV6  4 or 16 bytes
5      TIMESTAMP_ABS       8 bytes: seconds since 1970, big-endian, two's complement
6      DELTA1              1 byte: seconds since the timestamped measurement before
7      DELTA4              4 bytes, big-endian: the same, from 256 seconds on
8      RTT_START           2 bytes, EEEEEMMM MMMMMMMM: the round trip
9                          reserved
10     FAILED              nothing: no answer
11 + b                     byte b
=====  ==================  ===================================================================

Times are floored to seconds before they are subtracted, so summing the deltas restores every timestamp to the
second. A measurement earlier than the one it refers to has delta 0. From 2^32 seconds (136 years) on, a delta
does not fit, and the timestamp is absolute again.

A round trip is its microseconds as M * 2^E, with the smallest E that leaves M below 2,048; M is truncated, and no
leading 1 is implied. So 1 ms is M = 1000, E = 0; 2.048 ms is M = 1024, E = 1; 100 ms is M = 1562, E = 6. Times below
1 us count as 1 us, and those from 2047 * 2^31 us (51 days) on as M = 2047, E = 31. From 2,048 us on, M is 1,024 or
more, so the decoded value is less than one part in 1,024 below the encoded one, and at most one in 2^23 above it.
This last amount is added before truncating, because float32 milliseconds may be that much less than the value they
stand for: without it, half of the whole microseconds below 2,048 would come back as one less. With it, all of 1 to
4,000,000 us get the M and E of the integer, and a decoded value that is encoded again is the same.

All blocks of one kind are written with one indexed assignment: 50-100 million tokens/s for thousands of
measurements, against about 1 million/s measurement by measurement.
"""

from __future__ import annotations

import functools
import itertools
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from schemas.errors import InputError

# Raised whenever the same measurements become other tokens: a model can only go on with those it was trained on.
# Format 1 wrote round trips as (1 + M / 2048) * 2^E.
TOKEN_FORMAT = 2

MEASUREMENT_START = 0
SRC_IPV4, SRC_IPV6 = 1, 2
DST_IPV4, DST_IPV6 = 3, 4
TIMESTAMP_ABS, DELTA1, DELTA4 = 5, 6, 7
RTT_START, FAILED = 8, 10
FIRST_BYTE = 11
VOCABULARY_SIZE = FIRST_BYTE + 256

# The blocks of a measurement, as BLOCK_ORDERS counts them.
SOURCE, DESTINATION, RESULT, TIMESTAMP = range(4)
BLOCK_ORDERS = np.array(list(itertools.permutations(range(4))), np.int64)

_MICROSECONDS = 1_000_000
_MANTISSA_BITS = 11
_MAX_MICROSECONDS = (2**_MANTISSA_BITS - 1.0) * 2**31
_GUARD = 1 + 2.0**-23
_ADDRESS_CACHE = 2**17


@dataclass(frozen=True, slots=True, eq=False)
class AddressTable:
    """Hold distinct addresses, referred to by their row.

    Attributes:
        octets: uint8[n, 16], in network order; an IPv4 address takes the first 4.
        is_ipv6: bool[n].
    """

    octets: NDArray[np.uint8]
    is_ipv6: NDArray[np.bool_]


@functools.lru_cache(maxsize=_ADDRESS_CACHE)
def _row(text: str) -> bytes:
    """Return 16 octets, and 1 for IPv6."""
    is_ipv6 = ":" in text
    try:
        octets = socket.inet_pton(socket.AF_INET6 if is_ipv6 else socket.AF_INET, text)
    except (OSError, ValueError):
        raise InputError(f"{text!r} is not an IPv4 or IPv6 address", code="bad_address") from None
    return octets.ljust(16, b"\0") + bytes([is_ipv6])


def parse_addresses(texts: Iterable[str]) -> AddressTable:
    """Convert addresses in the usual notation to bytes; an address seen before costs a look-up.

    Raises:
        InputError: `bad_address`: an address is malformed.

    >>> table = parse_addresses(["192.0.2.1", "2001:db8::1"])
    >>> table.octets[0, :4].tolist(), table.is_ipv6.tolist()
    ([192, 0, 2, 1], [False, True])
    """
    rows = np.frombuffer(b"".join(map(_row, texts)), np.uint8).reshape(-1, 17)
    return AddressTable(rows[:, :16], rows[:, 16] == 1)


def encode_rtt(rtt_ms: ArrayLike) -> NDArray[np.uint16]:
    """Encode round trips in milliseconds, not negative, as 16-bit codes; see the module for format and error.

    >>> [f"{code:016b}" for code in encode_rtt([0.001, 1.0, 2.048, 1e30])]
    ['0000000000000001', '0000001111101000', '0000110000000000', '1111111111111111']
    """
    milliseconds = np.asarray(rtt_ms, np.float32).astype(np.float64)
    microseconds = np.clip(milliseconds * 1000 * _GUARD, 1.0, _MAX_MICROSECONDS)
    exponent = np.maximum(np.frexp(microseconds)[1] - _MANTISSA_BITS, 0).astype(np.int64)
    mantissa = (microseconds / (1 << exponent)).astype(np.int64)
    codes: NDArray[np.uint16] = (exponent << _MANTISSA_BITS | mantissa).astype(np.uint16)
    return codes


def decode_rtt(codes: ArrayLike) -> NDArray[np.float64]:
    """Decode 16-bit codes to milliseconds.

    >>> decode_rtt([0b0000001111101000, 0b0011011000011010]).tolist()
    [1.0, 99.968]
    """
    bits = np.asarray(codes).astype(np.int64)
    microseconds = (bits & 2**_MANTISSA_BITS - 1) << (bits >> _MANTISSA_BITS)
    milliseconds: NDArray[np.float64] = microseconds / 1000
    return milliseconds


@dataclass(frozen=True, slots=True, eq=False)
class Measurements:
    """Hold measurements of consecutive contexts, in the order in which they are written.

    Attributes:
        src, dst: int64[n], rows of the address table.
        rtt_ms: float32[n]; negative or NaN if the measurement failed.
        seconds: int64[n], since 1970.
        timed: bool[n], whether the timestamp is written.
        block_orders: int64[n], rows of `BLOCK_ORDERS`.
        context_offsets: int64[contexts + 1].
    """

    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    rtt_ms: NDArray[np.float32]
    seconds: NDArray[np.int64]
    timed: NDArray[np.bool_]
    block_orders: NDArray[np.int64]
    context_offsets: NDArray[np.int64]


def encode(
    measurements: Measurements, addresses: AddressTable
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Encode all measurements as tokens, one after the other.

    Returns:
        The tokens, int32[total], and where each measurement starts in them, int64[n + 1].

    >>> one = np.zeros(1, np.int64)
    >>> answered = Measurements(one, one + 1, np.ones(1, np.float32), one, one < 0, one, np.array([0, 1]))
    >>> encode(answered, parse_addresses(["1.2.3.4", "5.6.7.8"]))[0].tolist()
    [0, 1, 12, 13, 14, 15, 3, 16, 17, 18, 19, 8, 14, 243]
    """
    # Decide the form of every block, because the forms decide the lengths.
    m = measurements
    src_ipv6, dst_ipv6 = addresses.is_ipv6[m.src], addresses.is_ipv6[m.dst]
    answered = m.rtt_ms >= 0
    deltas, absolute = _deltas(m)
    short = m.timed & ~absolute & (deltas < 256)
    long = m.timed & ~absolute & (deltas >= 256)

    # Place every block before writing any, so that the tokens are allocated once and blocks can be written by kind.
    lengths = np.empty((len(m.src), 4), np.int64)
    lengths[:, SOURCE] = np.where(src_ipv6, 17, 5)
    lengths[:, DESTINATION] = np.where(dst_ipv6, 17, 5)
    lengths[:, RESULT] = np.where(answered, 3, 1)
    lengths[:, TIMESTAMP] = 9 * absolute + 2 * short + 5 * long
    offsets = np.zeros(len(m.src) + 1, np.int64)
    np.cumsum(lengths.sum(axis=1) + 1, out=offsets[1:])
    starts = _block_starts(offsets[:-1], lengths, BLOCK_ORDERS[m.block_orders])

    # Write one kind of block at a time: blocks of one kind have one length, so they form a matrix.
    tokens = np.empty(offsets[-1], np.int32)
    tokens[offsets[:-1]] = MEASUREMENT_START
    octets = addresses.octets
    for is_ipv6, codes, block, heads in (
        (src_ipv6, m.src, SOURCE, (SRC_IPV4, SRC_IPV6)),
        (dst_ipv6, m.dst, DESTINATION, (DST_IPV4, DST_IPV6)),
    ):
        rows = np.flatnonzero(~is_ipv6)
        _write(tokens, starts[rows, block], heads[0], octets[codes[rows], :4])
        rows = np.flatnonzero(is_ipv6)
        _write(tokens, starts[rows, block], heads[1], octets[codes[rows]])
    rows = np.flatnonzero(answered)
    _write(tokens, starts[rows, RESULT], RTT_START, _big_endian(encode_rtt(m.rtt_ms[rows]), 2))
    tokens[starts[~answered, RESULT]] = FAILED
    for mask, head, values, num_bytes in (
        (absolute, TIMESTAMP_ABS, m.seconds, 8),
        (short, DELTA1, deltas, 1),
        (long, DELTA4, deltas, 4),
    ):
        rows = np.flatnonzero(mask)
        _write(tokens, starts[rows, TIMESTAMP], head, _big_endian(values[rows], num_bytes))
    return tokens, offsets


def _write(tokens: NDArray[np.int32], at: NDArray[np.int64], head: int, content: NDArray[np.uint8]) -> None:
    """Write a block of one kind at many places."""
    tokens[at] = head
    tokens[at[:, None] + np.arange(1, content.shape[1] + 1)] = content + np.int32(FIRST_BYTE)


def _deltas(m: Measurements) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the seconds since the previous timestamped measurement of the context, and where none can be used."""
    places = np.arange(len(m.timed))
    last = np.maximum.accumulate(np.where(m.timed, places, -1))
    before = np.empty_like(last)
    before[:1] = -1
    before[1:] = last[:-1]
    is_first = before < np.repeat(m.context_offsets[:-1], np.diff(m.context_offsets))
    deltas = np.maximum(m.seconds - m.seconds[np.maximum(before, 0)], 0) if len(places) else m.seconds
    return deltas, m.timed & (is_first | (deltas >= 2**32))


def _block_starts(
    starts: NDArray[np.int64], lengths: NDArray[np.int64], orders: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return where each block starts, int64[n, 4] by block, for measurements that start at `starts`."""
    ordered = np.take_along_axis(lengths, orders, axis=1)
    begins = np.cumsum(ordered, axis=1) - ordered + (starts[:, None] + 1)
    by_block = np.empty_like(begins)
    np.put_along_axis(by_block, orders, begins, axis=1)
    return by_block


def _big_endian(values: NDArray[np.integer], num_bytes: int) -> NDArray[np.uint8]:
    """Return the low bytes of integers, the highest first: uint8[n, num_bytes]."""
    wide = np.ascontiguousarray(values.astype(">i8")).view(np.uint8).reshape(-1, 8)
    return wide[:, 8 - num_bytes :]


class Measurement(NamedTuple):
    """Hold a decoded measurement.

    Attributes:
        rtt_ms: `None` if it failed.
        seconds: seconds since 1970; `None` without a timestamp.
    """

    src_addr: str
    dst_addr: str
    rtt_ms: float | None
    seconds: int | None


def decode(tokens: ArrayLike) -> list[Measurement]:
    """Decode the measurements of one context, given without padding.

    A crop may cut its last measurement, which is then left out, unless only a timestamp in last place is missing.

    Raises:
        InputError: `bad_tokens`: a token is not one that the format allows there.

    >>> decode([0, 1, 12, 13, 14, 15, 3, 16, 17, 18, 19, 8, 14, 243, 0, 10, 3, 16])
    [Measurement(src_addr='1.2.3.4', dst_addr='5.6.7.8', rtt_ms=1.0, seconds=None)]
    """
    ids: list[int] = np.asarray(tokens).tolist()
    found: list[Measurement] = []
    clock: int | None = None
    at = 0
    while at < len(ids):
        if ids[at] != MEASUREMENT_START:
            raise _bad_token(ids, at, "MEASUREMENT_START")
        at += 1
        blocks: dict[int, tuple[int, bytes]] = {}
        while at < len(ids) and ids[at] != MEASUREMENT_START:
            block, num_bytes = _BLOCKS.get(ids[at], (-1, 0))
            if block < 0 or block in blocks:
                raise _bad_token(ids, at, "the head of a block this measurement does not have yet")
            content = ids[at + 1 : at + 1 + num_bytes]
            for offset, token in enumerate(content):
                if not FIRST_BYTE <= token < VOCABULARY_SIZE:
                    raise _bad_token(ids, at + 1 + offset, "a byte")
            # A crop cuts anywhere, so a block cut short ends the context without an error.
            if len(content) < num_bytes:
                return found
            blocks[block] = ids[at], bytes(token - FIRST_BYTE for token in content)
            at += 1 + num_bytes
        if not {SOURCE, DESTINATION, RESULT} <= blocks.keys():
            if at < len(ids):
                raise _bad_token(ids, at, "source, destination and result before the next measurement")
            return found
        if TIMESTAMP in blocks:
            clock = _clock(clock, *blocks[TIMESTAMP])
        found.append(_measurement(blocks, clock if TIMESTAMP in blocks else None))
    return found


# For each head, its block and the number of bytes that follow.
_BLOCKS = {
    SRC_IPV4: (SOURCE, 4),
    SRC_IPV6: (SOURCE, 16),
    DST_IPV4: (DESTINATION, 4),
    DST_IPV6: (DESTINATION, 16),
    TIMESTAMP_ABS: (TIMESTAMP, 8),
    DELTA1: (TIMESTAMP, 1),
    DELTA4: (TIMESTAMP, 4),
    RTT_START: (RESULT, 2),
    FAILED: (RESULT, 0),
}


def _bad_token(ids: list[int], at: int, expected: str) -> InputError:
    return InputError(f"found id {ids[at]}, expected {expected}", code="bad_tokens", where=f"token {at}")


def _clock(clock: int | None, head: int, content: bytes) -> int:
    if head == TIMESTAMP_ABS:
        return int.from_bytes(content, "big", signed=True)
    if clock is None:
        raise InputError("a time delta has no absolute timestamp before it", code="bad_tokens")
    return clock + int.from_bytes(content, "big")


def _measurement(blocks: dict[int, tuple[int, bytes]], seconds: int | None) -> Measurement:
    head, content = blocks[RESULT]
    rtt_ms = None if head == FAILED else float(decode_rtt([int.from_bytes(content, "big")])[0])
    return Measurement(_text(blocks[SOURCE][1]), _text(blocks[DESTINATION][1]), rtt_ms, seconds)


def _text(octets: bytes) -> str:
    return socket.inet_ntop(socket.AF_INET6 if len(octets) == 16 else socket.AF_INET, octets)
