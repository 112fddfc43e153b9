"""Literal keys and orders: what decides which row, bin or probe comes where.

The hashes and packings at the top make files, and change with a format version only. The orders below them are what a
trainer gets from files; nothing announces a change of those, and a training that is resumed would see other samples.
So these values are not for updating: an intended change replaces them here, and the changelog says so.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from golden.cases import CASES, ROOT, run_case

from schemas.canonical import canonical_hash
from schemas.run import FileRecord, Receipt, RowLedger
from tasks.corpus.cut import shard_bytes_for as sample_shard_bytes_for
from tasks.corpus.selection.md5 import hash_heads, hash_rows, hash_some_rows
from tasks.packing.bins import pack
from tasks.probes.rows.addresses import probe_hash, probe_hashes, src_id, train_end
from tasks.probes.shards import shard_bytes_for as probe_shard_bytes_for
from tasks.probes.training.loader import Order, build_probe_dataset
from tasks.probes.training.sampler import ProbeRowSampler
from tasks.probes.training.tokens import Measurements, encode, encode_rtt, parse_addresses
from tasks.run.receipts import format_record, parse_record
from tasks.sft.datasets.blending import blend_order
from tasks.sft.datasets.collate import Collate
from tasks.sft.datasets.factory import create_sft_dataset
from tasks.sft.datasets.order import EpochOrder, SampleMapping, Share
from tasks.sft.order.positions import positions, rotation


def digest(*arrays: Any) -> str:
    """16 hex digits of SHA-256 over shapes and values, as little-endian int64."""
    found = hashlib.sha256()
    for array in arrays:
        values = np.asarray(array)
        found.update(repr(values.shape).encode() + values.astype("<i8").tobytes())
    return found.hexdigest()[:16]


def test_the_hash_of_settings() -> None:
    fields = {"step": "plan", "format": 1, "interval": [0.0, 0.98], "pack": {}, "é": [None, True, "größe"]}
    assert canonical_hash(fields) == "d5c298f8016a707d"


def test_the_record_of_a_receipt() -> None:
    """A stage of an older run is used again only as long as its records can be read."""
    stored = (
        b'{"metadata":{"storage_key":"stages/0123456789abcdef/receipts/write-000003.json","expiration":null,'
        b'"serializer":{"type":"gristmill-receipt"},"storage_block_id":null},"result":"{\\"format\\":1,'
        b'\\"task\\":\\"write\\",\\"stage\\":\\"0123456789abcdef\\",\\"part\\":3,\\"files\\":[{\\"path\\":'
        b'\\"stages/0123456789abcdef/a.npy\\",\\"bytes\\":7,\\"sha256\\":\\"' + b"0f" * 32 + b'\\"}],'
        b'\\"ledger\\":{\\"rows_in\\":2,\\"rows_used\\":1,\\"not_selected\\":0,\\"filtered\\":0,\\"duplicates\\":0,'
        b'\\"rejected\\":{\\"null_text\\":1}},\\"statistics\\":{\\"bins\\":1}}"}'
    )
    receipt = Receipt(
        task="write",
        stage="0123456789abcdef",
        part=3,
        files=(FileRecord(path="stages/0123456789abcdef/a.npy", bytes=7, sha256="0f" * 32),),
        ledger=RowLedger(rows_in=2, rows_used=1, rejected={"null_text": 1}),
        statistics={"bins": 1},
    )
    assert format_record(receipt) == stored
    assert parse_record(stored) == receipt


@pytest.mark.parametrize(
    ("seed", "bucket", "path", "start", "expected"),
    [
        (42, "4.0", "deep/b.parquet", 99_998, ["e2aee96de42c79ce", "679a83e07ba04bbb", "abdef733b3f92fd2"]),
        (-7, "größe", "数/a b#c.parquet", 0, ["151ecf6f193e55be", "91e2711dea460872"]),
    ],
)
def test_row_ids_of_a_sample(seed: int, bucket: str, path: str, start: int, expected: list[str]) -> None:
    stop = start + len(expected)
    assert [f"{value:016x}" for value in hash_rows(seed, bucket, path, start, stop).tolist()] == expected
    assert [f"{value:08x}" for value in hash_heads(seed, bucket, path, start, stop).tolist()] == [
        value[:8] for value in expected
    ]
    rows = np.arange(start, stop)
    assert [f"{value:016x}" for value in hash_some_rows(seed, bucket, path, rows).tolist()] == expected
    ids = [f"{seed}_{bucket}#{path}#{row}".encode() for row in range(start, stop)]
    assert [hashlib.md5(one, usedforsecurity=False).hexdigest()[:16] for one in ids] == expected


def test_positions_of_conversations() -> None:
    digest = np.array([0x0123456789ABCDEF, 2**64 - 1], np.uint64)
    group = np.array([0xFEDCBA9876543210, 0], np.uint64)
    rows = np.array([0, 7])
    # The last four digits begin what SplitMix64's finaliser makes of 0 and 7: e220a8397b1dcdaf, 63cbe1e459320dd7.
    assert [f"{value:016x}" for value in positions(digest, None, rows).tolist()] == [
        "0123456789abe220", "ffffffffffff63cb",
    ]  # fmt: skip
    assert [f"{value:016x}" for value in positions(digest, group, rows).tolist()] == [
        "fedcba012345e220", "000000ffffff63cb",
    ]  # fmt: skip


def test_rotations_of_seeds() -> None:
    # The first bytes of `printf gristmill-split-42 | sha256sum`, the last two, or five with groups, cleared.
    assert [f"{rotation(seed, False):016x}" for seed in (0, 42)] == ["50fbaf1efa980000", "2f55e7504e220000"]
    assert [f"{rotation(seed, True):016x}" for seed in (0, 42)] == ["50fbaf0000000000", "2f55e70000000000"]


@pytest.mark.parametrize(
    ("address", "expected", "identity"),
    [
        ("192.0.2.1", ["a5190e6253296237", "6b5c36f8d3b977f7", "71973902117576a6"], 941121303211370278),
        ("2001:db8::1", ["1117c2b4e2860570", "9fc9650122676413", "3937e9371d84cd56"], 132377974462938913),
        ("::ffff:1.2.3.4", ["85b3ff20ce660a5f", "60f509beb54ed4bd", "a295f8a7e98ca260"], 875938433960839072),
    ],
)
def test_hashes_and_ids_of_probes(address: str, expected: list[str], identity: int) -> None:
    for seed, hashed in zip((42, 0, -7), expected, strict=True):
        assert f"{probe_hash(address.encode(), seed):016x}" == hashed
        assert [f"{value:016x}" for value in probe_hashes(pa.array([address]), seed).tolist()] == [hashed]
    assert src_id(address) == identity


def test_where_train_ends() -> None:
    assert [train_end(share) for share in (0.6, 0.9, 1.0)] == [
        11068046444225730560, 16602069666338596864, 2**64,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("order", "seed", "offsets", "items"),
    [
        ("shuffled", 42, [0, 3, 5, 8, 11, 14, 19, 24],
         [12, 5, 11, 14, 13, 22, 7, 17, 0, 20, 1, 9, 19, 2, 18, 8, 16, 15, 21, 4, 23, 10, 3, 6]),
        ("shuffled", 43, [0, 2, 6, 10, 13, 17, 20, 24],
         [8, 19, 17, 21, 14, 18, 4, 10, 12, 23, 22, 6, 9, 13, 1, 5, 3, 7, 11, 20, 15, 2, 16, 0]),
        ("decreasing", 42, [0, 3, 6, 9, 12, 15, 20, 24],
         [8, 16, 23, 0, 4, 2, 6, 22, 9, 17, 18, 14, 7, 11, 20, 13, 21, 3, 15, 1, 12, 19, 10, 5]),
    ],
)  # fmt: skip
def test_packings_of_few_items(order: Any, seed: int, offsets: list[int], items: list[int]) -> None:
    packing = pack([(7 * i * i + 13) % 31 + 1 for i in range(24)], 64, order=order, seed=seed)
    assert packing.bin_offsets.tolist() == offsets
    assert packing.bin_items.tolist() == items


@pytest.mark.parametrize(
    ("order", "seed", "bins", "expected"),
    [
        ("shuffled", 42, 428, "d5b99e454b450955"),
        ("shuffled", 9223372036854775808, 428, "a0e0d2b3eb61de4c"),
        ("decreasing", 42, 428, "ecb4f1298be51e54"),
    ],
)  # fmt: skip
def test_packings_of_many_items(order: Any, seed: int, bins: int, expected: str) -> None:
    lengths = [i * 2654435761 % 2**32 % 700 + 1 for i in range(5000)]
    packing = pack(lengths, 4096, order=order, seed=seed)
    assert (packing.num_bins, digest(packing.bin_offsets, packing.bin_items)) == (bins, expected)


@pytest.mark.parametrize(
    ("sizes", "smallest", "largest"),
    [
        (sample_shard_bytes_for, 64 << 20, 96 * (64 << 20)),
        (probe_shard_bytes_for, 64 << 20, 96 * (64 << 20)),
    ],
)
def test_where_shards_are_cut(sizes: Callable[[int], int], smallest: int, largest: int) -> None:
    """Small inputs make one part; how large ones are cut names other files under the same run hash."""
    assert [sizes(size) for size in (0, largest, largest + 1, 2 * largest + 1)] == [
        smallest, smallest, 2 * smallest, 4 * smallest,
    ]  # fmt: skip


def test_epochs_of_bins() -> None:
    groups = np.array([0, 4, 4, 9, 12, 20])
    order = EpochOrder(groups, seed=7, window=6)
    assert order.places(0, 0, 20).tolist() == [
        10, 5, 9, 4, 11, 6, 14, 15, 8, 13, 7, 12, 19, 17, 16, 18, 1, 0, 2, 3,
    ]  # fmt: skip
    assert order.places(1, 0, 20).tolist() == [
        5, 9, 11, 6, 10, 4, 7, 8, 2, 3, 1, 0, 13, 14, 17, 15, 12, 16, 18, 19,
    ]  # fmt: skip
    shared = EpochOrder(groups, seed=7, window=6, share=Share(2, 3))
    assert shared.places(0, 0, 7).tolist() == [3, 0, 1, 2, 19, 18, -1]
    mapping = SampleMapping(order)
    assert [mapping[sample] for sample in (0, 19, 20, 39)] == [10, 3, 5, 19]


def test_blends() -> None:
    sources, numbers = blend_order([0.5, 0.3, 0.2], 12)
    assert sources.tolist() == [0, 1, 0, 2, 0, 1, 0, 2, 1, 0, 0, 1]
    assert numbers.tolist() == [0, 0, 1, 0, 2, 1, 3, 1, 2, 4, 5, 3]
    assert digest(*blend_order([0.37, 0.23, 0.17, 0.11, 0.07, 0.05], 1000)) == "9aa537f1ade255ef"


def test_epochs_of_probe_records() -> None:
    order = [(0, 4), (0, 1), (0, 0), (0, 3), (0, 2), (1, 3), (1, 2), (1, 0), (1, 1), (1, 4)]
    assert Order(5, 2, seed=3).streams(0, 10) == order
    assert Order(5, 2, seed=3, index=1, count=2).streams(0, 5) == order[1::2]


# Milliseconds, and the exponent and mantissa of their microseconds by the rule of the format, not by our code.
_ROUND_TRIPS = (
    (0.001, 0, 1), (0.002, 0, 2), (0.01, 0, 10), (0.1, 0, 100), (0.255, 0, 255),
    (0.256, 0, 256), (0.999, 0, 999), (1.0, 0, 1000), (2.047, 0, 2047), (2.048, 1, 1024),
    (2.049, 1, 1024), (4.095, 1, 2047), (4.096, 2, 1024), (4.097, 2, 1024), (10.0, 3, 1250),
    (30.0, 4, 1875), (99.999, 6, 1562), (100.0, 6, 1562), (100.001, 6, 1562), (123.456, 6, 1929),
    (250.0, 7, 1953), (1000.0, 9, 1953), (1500.0, 10, 1464), (2000.0, 10, 1953), (60000.0, 15, 1831),
    (3600000.0, 21, 1716),
)  # fmt: skip


def test_tokens_of_round_trips() -> None:
    codes = encode_rtt([rtt for rtt, _, _ in _ROUND_TRIPS]).tolist()
    assert codes == [2048 * exponent + mantissa for _, exponent, mantissa in _ROUND_TRIPS]


def test_tokens_of_measurements() -> None:
    measurements = Measurements(
        src=np.zeros(4, np.int64),
        dst=np.array([1, 1, 2, 2]),
        rtt_ms=np.array([1.0, -1.0, math.nan, 250.0], np.float32),
        seconds=np.array([1_704_067_200, 1_704_067_260, 1_704_070_860, 0]),
        timed=np.array([True, True, True, False]),
        block_orders=np.array([0, 5, 23, 9]),
        context_offsets=np.array([0, 4]),
    )
    tokens, starts = encode(measurements, parse_addresses(["192.0.2.1", "198.51.100.7", "2001:db8::1"]))
    assert tokens.tolist() == [
        0, 1, 203, 11, 13, 12, 3, 209, 62, 111, 18, 8, 14, 243, 5, 11, 11, 11, 11, 112, 157, 11, 139,
        0, 1, 203, 11, 13, 12, 6, 71, 10, 3, 209, 62, 111, 18,
        0, 7, 11, 11, 25, 27, 10, 4, 43, 12, 24, 195, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 12, 1, 203, 11, 13,
        12,
        0, 4, 43, 12, 24, 195, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 12, 8, 74, 172, 1, 203, 11, 13, 12,
    ]  # fmt: skip
    assert starts.tolist() == [0, 23, 37, 66, 92]


def test_contexts_of_rows() -> None:
    drawn = ProbeRowSampler(seed=11).draw(
        np.array([1, 40, 700, 20_000]), [(0, 0), (0, 7), (1, 3), (2, 2**33)]
    )
    assert drawn.modes.tolist() == [
        1, 2, 0, 2, 0, 1, 1, 0, 2, 1, 0, 2, 2, 2, 0, 1, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1,
        2, 1, 0, 0,
    ]  # fmt: skip
    assert np.diff(drawn.context_offsets).tolist() == [
        1, 14, 2, 2, 34, 15, 34, 5, 28, 34, 5, 17, 2, 13, 34, 34, 6, 1, 34, 34, 34, 13, 1, 34, 34, 34,
        34, 34, 22, 34, 1, 34, 10, 34, 34,
    ]  # fmt: skip
    found = digest(
        drawn.rows, drawn.modes, drawn.context_offsets, drawn.positions, drawn.timed, drawn.block_orders
    )
    assert found == "13365c30c0060a0f"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The run folder of a golden case, made once."""
    runs: dict[str, Path] = {}

    def run(name: str) -> Path:
        if name not in runs:
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(ROOT)
                folder = tmp_path_factory.mktemp(name) / "out"
                runs[name] = folder / "runs" / run_case(CASES[name], folder).run_hash
        return runs[name]

    return run


def digest_of_samples(samples: Iterable[Any]) -> str:
    return digest(
        *(sample[name] for sample in samples for name in ("input_ids", "seq_boundaries", "loss_mask"))
    )


@pytest.mark.parametrize("name", ["pack-sft", "pack-sft-memmap", "pack-sft-npy"])
def test_samples_of_a_run(name: str, made: Callable[[str], Path]) -> None:
    with closing(create_sft_dataset(made(name), max_num_samples=150, seed=5)) as dataset:
        assert digest_of_samples(dataset) == "0b8d8081e1f625b6"
    with closing(create_sft_dataset(made(name), "valid")) as dataset:
        samples = list(dataset)
    assert digest_of_samples(samples) == "4db8839b60a4cff2"
    batch = Collate(pad_id=1).arrays(samples[:3])
    names = (
        "tokens", "labels", "loss_mask", "position_ids", "token_count", "padding_mask", "cu_seqlens", "max_seqlen",
    )  # fmt: skip
    assert digest(*(batch[name] for name in names)) == "50044f9364d232bd"


def test_crops_of_a_run(made: Callable[[str], Path]) -> None:
    run = made("build-probe-rows")
    packed = build_probe_dataset(run, 256, batch_size=4, seed=9, num_epochs=2, group_rows=16)
    assert digest_of_crops(islice(packed, 5)) == "4d03591205fddd62"
    single = build_probe_dataset(run, 512, batch_size=None, seed=9, pack=False, shard=(1, 2), group_rows=8)
    assert digest_of_crops(islice(single, 20)) == "26e1944ecd191eb4"


def digest_of_crops(crops: Iterable[Any]) -> str:
    return digest(*(crop[name] for crop in crops for name in sorted(crop)))
