"""Tokens against an encoder that writes one measurement at a time, as the format's table reads."""

from __future__ import annotations

import ipaddress
import math
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from schemas.errors import InputError
from tasks.probes.training.tokens import (
    BLOCK_ORDERS,
    FIRST_BYTE,
    VOCABULARY_SIZE,
    Measurement,
    Measurements,
    decode,
    decode_rtt,
    encode,
    encode_rtt,
    parse_addresses,
)

ADDRESSES = ["192.0.2.1", "0.0.0.1", "255.255.255.255", "2001:db8::1", "::", "ffff::ffff", "::ffff:1.2.3.4"]


def reference_address(text: str, head: int) -> list[int]:
    address = ipaddress.ip_address(text)
    return [head + (address.version == 6), *(11 + byte for byte in address.packed)]


def reference_rtt(rtt_ms: float) -> list[int]:
    """The mantissa of 11 bits and the smallest power of two whose product is not above the microseconds."""
    if not rtt_ms >= 0:
        return [10]
    microseconds = max(1.0, rtt_ms * 1000 * (1 + 2**-23))
    exponent = 0
    while microseconds / 2**exponent >= 2048:
        exponent += 1
    mantissa = math.floor(microseconds / 2**exponent)
    if exponent > 31:
        exponent, mantissa = 31, 2047
    return [8, 11 + (exponent << 3 | mantissa >> 8), 11 + (mantissa & 255)]


def reference_time(seconds: int, before: int | None) -> list[int]:
    if before is None or seconds - before >= 2**32:
        return [5, *(11 + byte for byte in seconds.to_bytes(8, "big", signed=True))]
    delta = max(0, seconds - before)
    if delta < 256:
        return [6, 11 + delta]
    return [7, *(11 + byte for byte in delta.to_bytes(4, "big"))]


def reference_encode(m: Measurements, addresses: list[str]) -> list[int]:
    tokens: list[int] = []
    for start, stop in pairwise(m.context_offsets.tolist()):
        before = None
        for i in range(start, stop):
            blocks = [
                reference_address(addresses[m.src[i]], 1),
                reference_address(addresses[m.dst[i]], 3),
                reference_rtt(float(m.rtt_ms[i])),
                [],
            ]
            if m.timed[i]:
                blocks[3] = reference_time(int(m.seconds[i]), before)
                before = int(m.seconds[i])
            tokens += [0]
            for block in BLOCK_ORDERS[m.block_orders[i]]:
                tokens += blocks[block]
    return tokens


def random_measurements(rng: np.random.Generator, sizes: list[int]) -> Measurements:
    n = sum(sizes)
    rtt = np.exp(rng.uniform(math.log(1e-4), math.log(1e8), n)).astype(np.float32)
    rtt[rng.random(n) < 0.2] = -1
    rtt[rng.random(n) < 0.05] = np.nan
    gaps = rng.choice([0, 1, 255, 256, 70_000, -5, 2**32 - 1, 2**32], n)
    return Measurements(
        src=rng.integers(0, len(ADDRESSES), n),
        dst=rng.integers(0, len(ADDRESSES), n),
        rtt_ms=rtt,
        seconds=np.cumsum(gaps) - 10_000,
        timed=rng.random(n) < 0.7,
        block_orders=rng.integers(0, 24, n),
        context_offsets=np.cumsum([0, *sizes]),
    )


def one(
    rtt_ms: float = 1.0, seconds: int = 0, timed: bool = True, order: int = 0, dst: int = 1
) -> NDArray[np.int32]:
    measurements = Measurements(
        np.zeros(1, np.int64),
        np.array([dst]),
        np.array([rtt_ms], np.float32),
        np.array([seconds]),
        np.array([timed]),
        np.array([order]),
        np.array([0, 1]),
    )
    return encode(measurements, parse_addresses(["1.2.3.4", "5.6.7.8", "::1"]))[0]


@pytest.mark.parametrize("seed", range(20))
def test_tokens_are_those_of_the_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = [0, 1, *rng.integers(0, 60, 8).tolist(), 0]
    measurements = random_measurements(rng, sizes)
    tokens, offsets = encode(measurements, parse_addresses(ADDRESSES))
    assert tokens.dtype == np.int32
    assert tokens.tolist() == reference_encode(measurements, ADDRESSES)
    assert offsets[0] == 0
    assert offsets[-1] == len(tokens)
    assert (tokens[offsets[:-1]] == 0).all()
    assert tokens.max() < VOCABULARY_SIZE


def test_no_measurement_gives_no_token() -> None:
    tokens, offsets = encode(
        random_measurements(np.random.default_rng(0), [0, 0]), parse_addresses(ADDRESSES)
    )
    assert len(tokens) == 0
    assert offsets.tolist() == [0]


def test_blocks_stand_in_the_order_asked_for() -> None:
    heads = {1: 0, 3: 1, 8: 2, 5: 3}
    for order, blocks in enumerate(BLOCK_ORDERS.tolist()):
        found = one(order=order).tolist()
        # Bytes are 11 and above, so what is below is a head.
        assert [heads[token] for token in found[1:] if token < FIRST_BYTE] == blocks


@pytest.mark.parametrize(
    ("seconds", "content"),
    [
        (0, [0] * 8),
        (1_599_523_340, [0, 0, 0, 0, 0x5F, 0x56, 0xCA, 0x0C]),
        (-1, [255] * 8),
        (2**40 + 1, [0, 0, 1, 0, 0, 0, 0, 1]),
    ],
)
def test_an_absolute_time_is_eight_bytes(seconds: int, content: list[int]) -> None:
    assert one(seconds=seconds).tolist()[-9:] == [5, *(11 + byte for byte in content)]


@pytest.mark.parametrize(
    ("gap", "tokens"),
    [
        (0, [6, 11]),
        (255, [6, 266]),
        (256, [7, 11, 11, 12, 11]),
        (2**32 - 1, [7, 266, 266, 266, 266]),
        (-3, [6, 11]),
        (2**32, [5, 11, 11, 11, 12, 11, 11, 11, 18]),
    ],
)
def test_a_later_time_is_a_delta(gap: int, tokens: list[int]) -> None:
    pair = Measurements(
        np.zeros(2, np.int64),
        np.ones(2, np.int64),
        np.ones(2, np.float32),
        np.array([7, 7 + gap]),
        np.ones(2, np.bool_),
        np.zeros(2, np.int64),
        np.array([0, 2]),
    )
    found = encode(pair, parse_addresses(["1.2.3.4", "5.6.7.8"]))[0].tolist()
    assert found[-len(tokens) :] == tokens


@pytest.mark.parametrize(
    ("rtt_ms", "tokens"),
    [
        (-1.0, [10]),
        (float("nan"), [10]),
        (0.0, [8, 11, 12]),
        (-0.0, [8, 11, 12]),
        (0.0005, [8, 11, 12]),
        (0.001, [8, 11, 12]),
        (0.003, [8, 11, 14]),
        (1.0, [8, 11 + 0b00000011, 11 + 0b11101000]),
        # 2^32 us are 1024 * 2^22; 2^42 us would be 1024 * 2^32.
        (2**32 / 1000, [8, 11 + 0b10110100, 11]),
        (2047 * 2**31 / 1000, [8, 266, 266]),
        (2**42 / 1000, [8, 266, 266]),
        (1e30, [8, 266, 266]),
        (float("inf"), [8, 266, 266]),
    ],
)
def test_results(rtt_ms: float, tokens: list[int]) -> None:
    assert one(rtt_ms=rtt_ms, timed=False).tolist()[11:] == tokens


def test_a_decoded_round_trip_lies_within_its_bounds() -> None:
    rng = np.random.default_rng(0)
    rtt = np.exp(rng.uniform(math.log(2.048), math.log(2047 * 2**31 / 1000), 500_000)).astype(np.float32)
    exact = rtt.astype(np.float64)
    below = (exact - decode_rtt(encode_rtt(rtt))) / exact
    assert below.max() < 2**-10
    assert below.min() >= -(2**-23)
    # The bound is tight: a code is truncated, not rounded.
    assert below.max() > 0.99 * 2**-10


def test_codes_survive_a_round_trip() -> None:
    """Every code that the rule can give: a mantissa below 1,024 only with exponent 0."""
    codes = np.arange(1, 2**16)
    codes = codes[(codes < 2048) | (codes % 2048 >= 1024)]
    assert np.array_equal(encode_rtt(decode_rtt(codes).astype(np.float32)), codes)
    assert (np.diff(decode_rtt(codes)) > 0).all()


@pytest.mark.parametrize("seed", range(5))
def test_decoding_gives_the_measurements_back(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = 40
    m = random_measurements(rng, [size])
    m.seconds[:] = np.cumsum(rng.choice([0, 1, 255, 256, 70_000, 2**32], size)) - 100
    tokens, _ = encode(m, parse_addresses(ADDRESSES))
    found = decode(tokens)
    assert len(found) == size
    for i, measurement in enumerate(found):
        assert ipaddress.ip_address(measurement.src_addr) == ipaddress.ip_address(ADDRESSES[m.src[i]])
        assert ipaddress.ip_address(measurement.dst_addr) == ipaddress.ip_address(ADDRESSES[m.dst[i]])
        assert measurement.seconds == (int(m.seconds[i]) if m.timed[i] else None)
        answered = bool(m.rtt_ms[i] >= 0)
        expected = float(decode_rtt(encode_rtt(m.rtt_ms[i : i + 1]))[0]) if answered else None
        assert measurement.rtt_ms == expected


def test_a_cut_measurement_is_left_out() -> None:
    tokens = one(seconds=9)
    whole = decode(tokens)
    assert whole == [Measurement("1.2.3.4", "5.6.7.8", 1.0, 9)]
    for end in range(len(tokens)):
        # All but its last block, the timestamp, is a measurement too.
        assert decode(tokens[:end]) == ([whole[0]._replace(seconds=None)] if end == 14 else [])
        assert decode(np.concatenate((tokens, tokens[:end])))[:1] == whole


@pytest.mark.parametrize(
    ("tokens", "where"),
    [
        ([1, 11, 11, 11, 11], "token 0"),
        ([0, 9], "token 1"),
        ([0, 267], "token 1"),
        ([0, 11], "token 1"),
        ([0, 1, 11, 11, 0, 11], "token 4"),
        ([0, 10, 10], "token 2"),
        ([0, 10, 0], "token 2"),
        ([0, 1, 11, 11, 11, 11, 3, 11, 11, 11, 11, 10, 6, 12], ""),
    ],
)
def test_what_is_no_measurement_is_refused(tokens: list[int], where: str) -> None:
    with pytest.raises(InputError) as caught:
        decode(tokens)
    assert (caught.value.code, caught.value.where) == ("bad_tokens", where)


@pytest.mark.parametrize(
    "text", ["", "1.2.3", "1.2.3.256", "1.2.3.04", "::g", "fe80::1%eth0", "1.2.3.4\0", "é"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_addresses(["1.2.3.4", text])
    assert caught.value.code == "bad_address"
