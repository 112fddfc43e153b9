"""The token format by its rule: golden streams worked out by hand, and a reader that shares no code with ours."""

from __future__ import annotations

import datetime
from ipaddress import ip_address

import numpy as np
import pytest
from plain_tokens import EPOCH, Read, read_context, round_trip
from records import random_rows

from tasks.probes.training.sampler import ProbeRowSampler
from tasks.probes.training.tokens import (
    TOKEN_FORMAT,
    Measurements,
    decode_rtt,
    encode,
    encode_rtt,
    parse_addresses,
)

# Milliseconds, exponent and mantissa of their microseconds, and the three tokens.
GOLDEN = (
    (0.001, 0, 1, [8, 11, 12]),
    (0.002, 0, 2, [8, 11, 13]),
    (0.01, 0, 10, [8, 11, 21]),
    (0.1, 0, 100, [8, 11, 111]),
    (0.255, 0, 255, [8, 11, 266]),
    (0.256, 0, 256, [8, 12, 11]),
    (0.999, 0, 999, [8, 14, 242]),
    (1.0, 0, 1000, [8, 14, 243]),
    (2.047, 0, 2047, [8, 18, 266]),
    (2.048, 1, 1024, [8, 23, 11]),
    (2.049, 1, 1024, [8, 23, 11]),
    (4.095, 1, 2047, [8, 26, 266]),
    (4.096, 2, 1024, [8, 31, 11]),
    (4.097, 2, 1024, [8, 31, 11]),
    (10.0, 3, 1250, [8, 39, 237]),
    (30.0, 4, 1875, [8, 50, 94]),
    (99.999, 6, 1562, [8, 65, 37]),
    (100.0, 6, 1562, [8, 65, 37]),
    (100.001, 6, 1562, [8, 65, 37]),
    (123.456, 6, 1929, [8, 66, 148]),
    (250.0, 7, 1953, [8, 74, 172]),
    (1000.0, 9, 1953, [8, 90, 172]),
    (1500.0, 10, 1464, [8, 96, 195]),
    (2000.0, 10, 1953, [8, 98, 172]),
    (60000.0, 15, 1831, [8, 138, 50]),
    (3600000.0, 21, 1716, [8, 185, 191]),
)  # fmt: skip

ADDRESSES = ["192.0.2.10", "198.51.100.7", "2001:db8::1", "2001:db8:0:1::ff"]
# What is encoded: source, destination, ms, seconds, with a timestamp?, order of the blocks; two contexts.
STREAM = [
    (0, 1, 12.345, 1_704_067_200, True, 0),
    (0, 1, -1.0, 1_704_067_259, True, 5),
    (0, 1, 0.001, 1_704_070_859, True, 23),
    (0, 1, 60_000.0, 0, False, 9),
    (0, 1, 2.048, 1_704_071_114, True, 0),
    (2, 3, 250.0, 1_704_067_200, True, 0),
    (2, 3, -1.0, 1_704_067_456, True, 0),
]
# Byte b is token 11 + b. Addresses:
#   192.0.2.10       = bytes 192, 0, 2, 10                        -> 203 11 13 21
#   198.51.100.7     = bytes 198, 51, 100, 7                      -> 209 62 111 18
#   2001:db8::1      = bytes 32, 1, 13, 184, 11 times 0, 1        -> 43 12 24 195, 11 times 11, 12
#   2001:db8:0:1::ff = bytes 32, 1, 13, 184, 0, 0, 0, 1, 7 times 0, 255
# Times, in seconds since 1970:
#   1704067200 = 0x65920080: bytes 0, 0, 0, 0, 101, 146, 0, 128   -> 5, 11 11 11 11 112 157 11 139
#   59 more: one byte                                             -> 6, 70
#   3600 more = 0x00000E10: bytes 0, 0, 14, 16                    -> 7, 11 11 25 27
#   255 more than the timestamped one before, over one without    -> 6, 266
#   256 more = 0x00000100                                         -> 7, 11 11 12 11
# Round trips, as M * 2^E microseconds, in bytes EEEEEMMM MMMMMMMM:
#   12.345 ms: 12345 / 8 = 1543.1: E 3, M 1543 = 6 * 256 + 7; bytes 3 * 8 + 6 = 30, 7        -> 8, 41 18
#   0.001 ms: E 0, M 1; bytes 0, 1                                                           -> 8, 11 12
#   60 s: 60000000 / 32768 = 1831.05: E 15, M 1831 = 7 * 256 + 39; bytes 15 * 8 + 7, 39      -> 8, 138 50
#   2.048 ms: 2048 / 2: E 1, M 1024 = 4 * 256; bytes 1 * 8 + 4, 0                            -> 8, 23 11
#   250 ms: 250000 / 128 = 1953.1: E 7, M 1953 = 7 * 256 + 161; bytes 7 * 8 + 7 = 63, 161    -> 8, 74 172
# START is 0, the heads of addresses are 1 and 3 for IPv4, 2 and 4 for IPv6, FAILED is 10.
TOKENS = [
    # source, destination, result, absolute time
    0, 1, 203, 11, 13, 21, 3, 209, 62, 111, 18, 8, 41, 18, 5, 11, 11, 11, 11, 112, 157, 11, 139,
    # source, time, result, destination
    0, 1, 203, 11, 13, 21, 6, 70, 10, 3, 209, 62, 111, 18,
    # time, result, destination, source
    0, 7, 11, 11, 25, 27, 8, 11, 12, 3, 209, 62, 111, 18, 1, 203, 11, 13, 21,
    # destination, result, (no time,) source
    0, 3, 209, 62, 111, 18, 8, 138, 50, 1, 203, 11, 13, 21,
    0, 1, 203, 11, 13, 21, 3, 209, 62, 111, 18, 8, 23, 11, 6, 266,
    # the second context starts with an absolute time again
    0, 2, 43, 12, 24, 195, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 12,
    4, 43, 12, 24, 195, 11, 11, 11, 12, 11, 11, 11, 11, 11, 11, 11, 266,
    8, 74, 172, 5, 11, 11, 11, 11, 112, 157, 11, 139,
    0, 2, 43, 12, 24, 195, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 12,
    4, 43, 12, 24, 195, 11, 11, 11, 12, 11, 11, 11, 11, 11, 11, 11, 266,
    10, 7, 11, 11, 12, 11,
]  # fmt: skip
STARTS = [0, 23, 37, 56, 70, 86, 133, 174]


def test_whole_measurements_have_these_tokens() -> None:
    src, dst, rtt, seconds, timed, order = (list(column) for column in zip(*STREAM, strict=True))
    stream = Measurements(
        src=np.array(src),
        dst=np.array(dst),
        rtt_ms=np.array(rtt, np.float32),
        seconds=np.array(seconds),
        timed=np.array(timed),
        block_orders=np.array(order),
        context_offsets=np.array([0, 5, 7]),
    )
    tokens, starts = encode(stream, parse_addresses(ADDRESSES))
    assert tokens.tolist() == TOKENS
    assert starts.tolist() == STARTS
    # These tokens are the format; whoever changes them raises its number.
    assert TOKEN_FORMAT == 2


def test_the_plain_reader_reads_them_back() -> None:
    assert list(read_context(TOKENS[:86])) == [
        Read("192.0.2.10", "198.51.100.7", 12_344, 1_704_067_200),
        Read("192.0.2.10", "198.51.100.7", None, 1_704_067_259),
        Read("192.0.2.10", "198.51.100.7", 1, 1_704_070_859),
        Read("192.0.2.10", "198.51.100.7", 59_998_208, None),
        Read("192.0.2.10", "198.51.100.7", 2_048, 1_704_071_114),
    ]
    assert list(read_context(TOKENS[86:])) == [
        Read("2001:db8::1", "2001:db8:0:1::ff", 249_984, 1_704_067_200),
        Read("2001:db8::1", "2001:db8:0:1::ff", None, 1_704_067_456),
    ]


@pytest.mark.parametrize(("rtt_ms", "exponent", "mantissa", "tokens"), GOLDEN)
def test_golden_round_trips(rtt_ms: float, exponent: int, mantissa: int, tokens: list[int]) -> None:
    [code] = encode_rtt([rtt_ms]).tolist()
    assert code == exponent * 2048 + mantissa
    assert [8, 11 + code // 256, 11 + code % 256] == tokens
    assert decode_rtt([code]).tolist() == [mantissa * 2**exponent / 1000]


def test_whole_microseconds_have_the_code_of_the_integer() -> None:
    """1 to 4,000,000 us, each stored as float32 ms, against integer arithmetic alone."""
    microseconds = np.arange(1, 4_000_001)
    digits = sum((microseconds >> bit > 0).astype(np.int64) for bit in range(22))
    exponent = np.maximum(digits - 11, 0)
    expected = exponent << 11 | microseconds >> exponent
    codes = encode_rtt((microseconds / 1000).astype(np.float32)).astype(np.int64)
    assert np.count_nonzero(codes != expected) == 0


def test_contexts_are_read_back_by_the_plain_reader() -> None:
    """Every measurement of the contexts that a sampler draws is one of the row, to the second and the mantissa."""
    rows = random_rows(4, 60)
    contexts = ProbeRowSampler(seed=2).sample(rows, [(0, number) for number in range(60)])
    sizes = ProbeRowSampler().num_contexts(np.array([len(row["measurements"]) for row in rows]))
    owner = np.repeat(np.arange(60), sizes).tolist()
    number_read = 0
    for number, start, stop in zip(owner, contexts.offsets, contexts.offsets[1:], strict=False):
        wanted = set()
        for row in rows[number]["measurements"].to_pylist():
            seconds = (row["event_time"] - EPOCH) // datetime.timedelta(seconds=1)
            exponent, mantissa = round_trip(row["rtt"]) if row["rtt"] >= 0 else (0, 0)
            rtt = mantissa * 2**exponent if row["rtt"] >= 0 else None
            dst_addr = str(ip_address(row["dst_addr"]))
            wanted |= {(dst_addr, rtt, seconds), (dst_addr, rtt, None)}
        for read in read_context(contexts.tokens[start:stop].tolist()):
            assert read.src_addr == str(ip_address(rows[number]["src_addr"]))
            assert read[1:] in wanted
            number_read += 1
    assert number_read > 900
