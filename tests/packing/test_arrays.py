"""Array kernels against plain Python, over random input and at the edges."""

from __future__ import annotations

import numpy as np
import pytest

from tasks.packing.arrays import lengths_to_offsets, owners, ranges, repeated, stable_order


@pytest.mark.parametrize("seed", range(20))
def test_against_plain_python(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 5, rng.integers(0, 30))
    starts = rng.integers(-100, 100, len(lengths))
    pairs = list(zip(starts.tolist(), lengths.tolist(), strict=True))
    assert ranges(starts, lengths).tolist() == [start + i for start, length in pairs for i in range(length)]
    assert ranges(7, lengths.astype(np.int32)).tolist() == [
        7 + i for _, length in pairs for i in range(length)
    ]
    assert owners(lengths).tolist() == [number for number, (_, n) in enumerate(pairs) for _ in range(n)]
    assert lengths_to_offsets(lengths).tolist() == [int(lengths[:i].sum()) for i in range(len(lengths) + 1)]
    assert ranges(starts, lengths).dtype == owners(lengths).dtype == np.int64

    columns = [rng.integers(0, 3, 50) for _ in range(3)]
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    assert repeated(*columns).tolist() == [row in rows[:i] for i, row in enumerate(rows)]
    assert repeated(*(column[:0] for column in columns)).tolist() == []


@pytest.mark.parametrize("num_keys", [1, 2, 2**16 - 1, 2**16, 2**16 + 1, 2**32, 2**40])
@pytest.mark.parametrize("kind", [np.uint16, np.int32, np.uint32, np.int64])
def test_stable_order_is_that_of_a_stable_sort(num_keys: int, kind: type[np.integer]) -> None:
    if num_keys - 1 > np.iinfo(kind).max:
        return
    rng = np.random.default_rng(num_keys)
    keys = rng.integers(0, num_keys, 2000).astype(kind)
    keys[::3] = keys[0]
    keys[:2] = num_keys - 1, 0
    assert stable_order(keys, num_keys).tolist() == np.argsort(keys, kind="stable").tolist()
    assert stable_order(keys[:0], num_keys).tolist() == []
