"""What follows from an address: its family, its place in hash order, its id.

Every distinct address of a run of rows is looked at once; rows only carry codes.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Iterable
from fractions import Fraction

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_REMEMBERED = 1 << 20


def family(address: bytes) -> int:
    """4 or 6, or 0 for what is no address; strict: no zone, no leading zeros, no spaces.

    >>> family(b"192.0.2.1"), family(b"2001:db8::1"), family(b"192.0.2.01"), family(b"fe80::1%eth0")
    (4, 6, 0, 0)
    """
    version = 6 if b":" in address else 4
    try:
        socket.inet_pton(socket.AF_INET6 if version == 6 else socket.AF_INET, address.decode("ascii"))
    except (OSError, ValueError):
        return 0
    return version


def probe_hash(address: bytes, seed: int) -> int:
    """A probe's place in hash order, 0 to 2**64 - 1: BLAKE2b keyed with the seed.

    >>> probe_hash(b"192.0.2.1", 42) == probe_hash(b"192.0.2.1", 43)
    False
    """
    key = seed.to_bytes(8, "little", signed=True)
    return int.from_bytes(hashlib.blake2b(address, digest_size=8, key=key, person=b"probe").digest(), "big")


def train_end(train_ratio: float) -> int:
    """Probes whose hash is below this are train, 0 to 2**64.

    >>> train_end(0.5) == 2**63, train_end(1.0) == 2**64
    (True, True)
    """
    return int(Fraction(train_ratio) * 2**64)


def src_id(address: str) -> int:
    """The first 15 hex digits of MD5 of the address: 60 bits.

    >>> src_id("192.0.2.1")
    941121303211370278
    """
    return int(hashlib.md5(address.encode(), usedforsecurity=False).hexdigest()[:15], 16)


class Remembered:
    """A function of an address, looked up for whole dictionaries of addresses.

    Args:
        function: from address to int.
    """

    def __init__(self, function: Callable[[bytes], int]) -> None:
        self._function = function
        self._known: dict[bytes, int] = {}

    def of_all(self, addresses: Iterable[bytes]) -> list[int]:
        """The function's values, in order."""
        if len(self._known) > _REMEMBERED:
            self._known.clear()
        known, function = self._known, self._function
        values = []
        for address in addresses:
            value = known.get(address)
            if value is None:
                value = known[address] = function(address)
            values.append(value)
        return values


def families(addresses: pa.StringArray, remembered: Remembered) -> NDArray[np.int8]:
    """int8[n + 1]: the family of every address; the last entry, 0, is that of a null."""
    # As bytes: Arrow does not check that a string is UTF-8.
    values = remembered.of_all(addresses.cast(pa.binary()).to_pylist())
    return np.array([*values, 0], dtype=np.int8)


def probe_hashes(addresses: pa.StringArray, remembered: Remembered) -> NDArray[np.uint64]:
    """uint64[n]: the hash of every address."""
    return np.array(remembered.of_all(addresses.cast(pa.binary()).to_pylist()), dtype=np.uint64)
