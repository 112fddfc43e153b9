"""What is remembered of addresses equals what is computed, whatever was asked for before."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tasks.probes.rows import addresses
from tasks.probes.rows.addresses import families, family, probe_hash, probe_hashes


@pytest.mark.parametrize("remembered", [0, 5, 1 << 18])
def test_look_ups_equal_the_functions(remembered: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_REMEMBERED", remembered)
    rng = np.random.default_rng(remembered)
    pool = [f"192.0.2.{i}" for i in range(300)] + [f"2001:db8::{i:x}" for i in range(300)] + ["", "x", "é"]
    for size in (0, 1, 1, 400, 30, 30, 600, 7):
        texts = rng.choice(pool, size, replace=False).tolist()
        array = pa.array(texts, pa.string())
        for given in (array, array, pa.concat_arrays([pa.array(["skipped"]), array]).slice(1)):
            assert families(given).tolist() == [*(family(text.encode()) for text in texts), 0]
            for seed in (42, -1):
                assert probe_hashes(given, seed).tolist() == [
                    probe_hash(text.encode(), seed) for text in texts
                ]


def test_bytes_that_are_no_text() -> None:
    values = pa.array([b"\xff\xfe", b"192.0.2.1"], pa.binary())
    broken = pa.StringArray.from_buffers(2, values.buffers()[1], values.buffers()[2])
    for _ in range(2):
        assert families(broken).tolist() == [0, 4, 0]


@pytest.mark.parametrize(
    ("address", "seed", "value"),
    [
        (b"192.0.2.1", 42, 0xA5190E6253296237),
        (b"192.0.2.1", 43, 0x92D053398FA2120C),
        (b"192.0.2.1", -1, 0xD32B8EDE4C149FB1),
        (b"2001:db8::1", 42, 0x1117C2B4E2860570),
        (b"", 0, 0x7918D71C34B82635),
    ],
)
def test_the_hash_of_a_probe_stays_as_it_is(address: bytes, seed: int, value: int) -> None:
    """It orders the records of published shards and says which probes are train: another needs another format."""
    assert probe_hash(address, seed) == value
    assert probe_hashes(pa.array([address.decode()]), seed).tolist() == [value]
