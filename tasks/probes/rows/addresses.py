"""Derive from an address its family, its place in hash order and its id.

Each distinct address of a run of rows is examined once; rows only carry codes.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_REMEMBERED = 1 << 18
# Dictionaries to remember: those of two columns, for some row groups read at once.
_RECENT = 8


def family(address: bytes) -> int:
    """Return 4 or 6, or 0 if the text is not an address; strict: no zone, no leading zeros, no spaces.

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
    """Return a probe's place in hash order, 0 to 2**64 - 1: BLAKE2b keyed with the seed.

    >>> probe_hash(b"192.0.2.1", 42) == probe_hash(b"192.0.2.1", 43)
    False
    """
    key = seed.to_bytes(8, "little", signed=True)
    return int.from_bytes(hashlib.blake2b(address, digest_size=8, key=key, person=b"probe").digest(), "big")


def train_end(train_ratio: float) -> int:
    """Return the hash, 0 to 2**64, below which probes are train.

    >>> train_end(0.5) == 2**63, train_end(1.0) == 2**64
    (True, True)
    """
    return int(Fraction(train_ratio) * 2**64)


def src_id(address: str) -> int:
    """Return the first 15 hex digits of the address's MD5 as an integer of 60 bits.

    >>> src_id("192.0.2.1")
    941121303211370278
    """
    return int(hashlib.md5(address.encode(), usedforsecurity=False).hexdigest()[:15], 16)


def families(addresses: pa.StringArray) -> NDArray[np.int8]:
    """Return the family of every address, int8[n + 1]; the last entry, 0, stands for a null.

    >>> families(pa.array(["192.0.2.1", "::1", "nowhere"])).tolist()
    [4, 6, 0, 0]
    """
    return np.append(_family_of(addresses), np.int8(0))


def probe_hashes(addresses: pa.StringArray, seed: int) -> NDArray[np.uint64]:
    """Return the hash of every address, uint64[n]."""
    return _hash_of(seed)(addresses)


class _Remembered:
    """Compute a function of addresses, and remember its results: every run of rows has the same addresses.

    A look-up by Arrow takes 0.1 microseconds, the functions take 1. All runs of a row group share one dictionary.
    """

    def __init__(self, function: Callable[[bytes], int], kind: type[np.generic]) -> None:
        self._function, self._kind = function, kind
        # Replaced together, so that threads see both or neither.
        self._known = pa.array([], pa.binary()), np.array([], kind)
        self._recent: tuple[tuple[pa.BinaryArray, NDArray[Any]], ...] = ()

    def __call__(self, addresses: pa.StringArray) -> NDArray[Any]:
        """Return the function's value for every address; the addresses are distinct."""
        # Arrow does not check that a string is UTF-8.
        given = addresses.cast(pa.binary())
        for addresses, found in self._recent:
            if given.equals(addresses):
                return found
        found = self._look_up(given)
        if len(given) <= _REMEMBERED // _RECENT:
            self._recent = ((given, found), *self._recent[: _RECENT - 1])
        return found

    def _look_up(self, given: pa.BinaryArray) -> NDArray[Any]:
        known, values = self._known
        places = pc.index_in(given, value_set=known)
        new = places.is_null().to_numpy(zero_copy_only=False)
        found = np.empty(len(given), self._kind)
        found[~new] = values[places.drop_null().to_numpy()]
        if new.any():
            unseen = given.filter(pa.array(new))
            found[new] = [self._function(address) for address in unseen.to_pylist()]
            keep = len(known) + len(unseen) <= _REMEMBERED
            self._known = (
                (pa.concat_arrays([known, unseen]), np.concatenate([values, found[new]]))
                if keep
                else (given, found)
            )
        return found


_family_of = _Remembered(family, np.int8)


@lru_cache(4)
def _hash_of(seed: int) -> _Remembered:
    return _Remembered(partial(probe_hash, seed=seed), np.uint64)
