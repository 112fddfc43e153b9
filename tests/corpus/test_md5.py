"""Vectorised MD5 of row ids against hashlib, over every layout of the message."""

from __future__ import annotations

import hashlib
import pickle

import numpy as np
import pytest

from schemas.errors import InputError, WorkError
from tasks.corpus.selection import md5
from tasks.corpus.selection.md5 import hash_heads, hash_rows, hash_some_rows


def reference(seed: int, bucket: str, path: str, rows: range) -> list[int]:
    digests = (
        hashlib.md5(f"{seed}_{bucket}#{path}#{row}".encode(), usedforsecurity=False).digest() for row in rows
    )
    return [int.from_bytes(digest[:8], "big") for digest in digests]


def assert_equal_to_hashlib(seed: int, bucket: str, path: str, start: int, stop: int) -> None:
    wanted = reference(seed, bucket, path, range(start, stop))
    hashes = hash_rows(seed, bucket, path, start, stop)
    assert hashes.dtype == np.uint64
    assert hashes.tolist() == wanted
    heads = hash_heads(seed, bucket, path, start, stop)
    assert heads.dtype == np.uint32
    assert heads.tolist() == [value >> 32 for value in wanted]


@pytest.fixture
def always_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also ranges so short that a hashlib loop would serve them go through the arrays."""
    monkeypatch.setattr(md5, "_LOOP_ROWS", 0)


@pytest.mark.usefixtures("always_arrays")
@pytest.mark.parametrize("num_digits", [1, 2, 3, 4, 5, 6, 7, 10, 13, 18])
def test_every_message_length(num_digits: int) -> None:
    # "1_b#" and "#" are 5 bytes: prefixes of 5 to 325 bytes, so messages of 6 to 343.
    last = 10**num_digits - 1
    for length in range(321):
        assert_equal_to_hashlib(1, "b", "p" * length, max(0, last - 3), last + 1)


@pytest.mark.usefixtures("always_arrays")
@pytest.mark.parametrize(
    "length", [0, 1, 2, 3, 40, 45, 46, 47, 50, 54, 55, 56, 59, 60, 64, 110, 120, 128, 300]
)
@pytest.mark.parametrize("boundary", [10**power for power in range(1, 13)])
def test_digit_boundaries(length: int, boundary: int) -> None:
    assert_equal_to_hashlib(42, "4", "d" * length, max(0, boundary - 7), boundary + 6)


@pytest.mark.parametrize(
    ("start", "stop"),
    [(0, 120_000), (24_990, 25_300), (99_500, 100_500), (199_000, 201_001), (10**12 - 400, 10**12 + 400)],
)
def test_ranges_over_several_blocks(start: int, stop: int) -> None:
    for path in ("data/train-00001-of-00100.parquet", "nested/" * 7 + "f.parquet"):
        assert_equal_to_hashlib(42, "4.0", path, start, stop)


@pytest.mark.parametrize("seed", [0, 42, -7, 2**63])
@pytest.mark.parametrize("bucket", ["4", "4.0", "größer", "", "a#b"])
@pytest.mark.parametrize(
    "path", ["данные/файл.parquet", "日本語/データ.parquet", "🦀.parquet", "a b#c.parquet", ""]
)
def test_seeds_buckets_and_unicode_paths(seed: int, bucket: str, path: str) -> None:
    assert_equal_to_hashlib(seed, bucket, path, 700, 1300)


def test_random_ranges() -> None:
    rng = np.random.default_rng(3)
    for _ in range(150):
        path = "x" * int(rng.integers(0, 150))
        start = int(10 ** rng.uniform(0, 12.2))
        assert_equal_to_hashlib(int(rng.integers(1000)), "b", path, start, start + int(rng.integers(0, 1500)))


def test_a_part_of_a_range_has_the_same_hashes() -> None:
    whole = hash_rows(42, "4", "a.parquet", 0, 60_000)
    for start, stop in [(0, 0), (0, 1), (17, 18), (5, 30_001), (24_999, 25_001), (59_999, 60_000)]:
        assert np.array_equal(hash_rows(42, "4", "a.parquet", start, stop), whole[start:stop])


def test_some_rows() -> None:
    whole = hash_rows(42, "4", "a.parquet", 0, 2000)
    rows = np.array([1999, 0, 7, 7, 1000])
    some = hash_some_rows(42, "4", "a.parquet", rows)
    assert some.dtype == np.uint64
    assert np.array_equal(some, whole[rows])
    assert len(hash_some_rows(42, "4", "a.parquet", rows[:0])) == 0


def test_empty_range() -> None:
    assert hash_rows(42, "4", "a.parquet", 5, 5).shape == (0,)
    assert hash_heads(42, "4", "a.parquet", 0, 0).shape == (0,)


def test_cached_tables_are_read_only_and_small() -> None:
    tables = [md5._digit_words(offset, digits) for offset in range(4) for digits in range(1, 6)]
    assert sum(words.nbytes for table in tables for words in table) < 4_000_000
    assert not any(words.flags.writeable for table in tables for words in table)


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 4)])
def test_a_range_that_is_none_is_refused(start: int, stop: int) -> None:
    for function in (hash_rows, hash_heads):
        with pytest.raises(WorkError) as caught:
            function(42, "4", "a.parquet", start, stop)
        assert caught.value.code == "bad_range"


def test_a_path_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        hash_rows(42, "4", "caf\udce9.parquet", 0, 5)
    assert caught.value.code == "path_encoding"
    assert "rename" in str(caught.value)
    str(caught.value).encode()
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301
