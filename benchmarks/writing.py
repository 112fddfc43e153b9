"""Pack: from a token spool to Parquet shards, against the list-of-arrays writer.

    python -m benchmarks.writing  # about two minutes, on one core, 1.5 GB in the folder for temporary files

Ours is the whole task: gather, pack, Parquet, SHA-256, fsync, receipt. The other is given the bins and the tokens in
memory, builds an array for each bin, appends it to a list and hands the lists to `pa.table`, a table for each file;
same codec, same row groups, same files, no checksum and no fsync. It runs as pyarrow comes, and once more with our
column encodings.
Sequences are lognormal, median 350, sigma 1; ids are drawn by rank, Zipf-like, from a vocabulary of 128k.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.common import in_turn, median, ratio, report
from benchmarks.packing import lognormal_lengths
from schemas.sft import PackConfig, SplitsConfig, StorageConfig
from tasks.run.layout import stage_folder
from tasks.sft.cut import CutJob, cut_dataset
from tasks.sft.order.spool import Rows, TokenSpoolWriter
from tasks.sft.pack import PackJob, pack_shards
from tasks.sft.shards.parquet_writer import PACKED_FIELDS
from tasks.sft.shards.writers import shard_name

SEQUENCES, SIZE, VOCABULARY = 200_000, 4096, 128_000
REPEATS = 5
TARGET = 1.8
SPOOL, CUT, OURS = "a" * 16, "b" * 16, "c" * 16
PACK = PackConfig(size=SIZE)
STORAGE = StorageConfig()


def write_spool(root: Path, batch: int = 10_000) -> None:
    """A spool of random sequences: a third of each is prompt, the rest is trained."""
    rng = np.random.default_rng(0)
    all_lengths = lognormal_lengths(SEQUENCES, SIZE)
    with TokenSpoolWriter(stage_folder(root, SPOOL)) as spool:
        for first in range(0, SEQUENCES, batch):
            lengths = np.maximum(all_lengths[first : first + batch], 2).astype(np.int64)
            # Log-uniform ranks: the k-th most frequent id comes with a share of about 1/k.
            ids = np.exp(rng.random(int(lengths.sum()), np.float32) * np.float32(np.log(VOCABULARY)))
            within = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            trained = (within >= np.repeat(lengths // 3, lengths)).astype(np.uint8)
            numbers = np.arange(first, first + len(lengths))
            digests = rng.integers(0, 2**64, (len(lengths), 2), np.uint64)
            rows = Rows(np.zeros(len(lengths), np.int64), numbers, digests, None)
            each = np.arange(len(lengths))
            spool.append(ids.astype(np.int32) - 1, trained, lengths, each.astype(np.int32), each * 0, rows)
        spool.finish(root)


def cut_job(root: Path) -> CutJob:
    return CutJob(
        output_dir=str(root), stage=CUT, spool_stages=(SPOOL,), splits=SplitsConfig(train=1, valid=0, test=0),
        seed=0, grouped=False, deduplicate=False, shard_tokens=STORAGE.shard_tokens,
    )  # fmt: skip


def pack_job(root: Path, shards: int) -> PackJob:
    return PackJob(
        output_dir=str(root), stage=OURS, cut_stage=CUT, spool_stages=(SPOOL,), source_files=(("rows",),),
        split="train", packing=OURS, first_shard=0, end_shard=shards, seed=0, grouped=False, deduplicate=False,
        pack=PACK, storage=STORAGE, eos_id=None, tokenizer_digest="0" * 64, vocabulary_size=VOCABULARY,
    )  # fmt: skip


Bin = list[tuple[NDArray[np.int32], NDArray[np.uint8]]]


def bins_of(shard: Path) -> list[Bin]:
    """The sequences of each bin as arrays of their own, as a user's packer holds them."""
    columns = pq.read_table(shard)
    rows = zip(*(columns[name] for name in ("input_ids", "loss_mask", "seq_start_id")), strict=True)
    out = []
    for ids, mask, starts in rows:
        cuts = starts.values.to_numpy()[1:]
        pieces = zip(
            np.split(ids.values.to_numpy(), cuts), np.split(mask.values.to_numpy(), cuts), strict=True
        )
        out.append(list(pieces))
    return out


def list_of_arrays(shards: dict[str, list[Bin]], folder: Path, use_dictionary: bool | list[str]) -> None:
    """Each shard as lists of one array a bin."""
    for name, bins in shards.items():
        input_ids, loss_mask, seq_start_id = [], [], []
        for one in bins:
            lengths = np.array([len(ids) for ids, _ in one])
            input_ids.append(np.concatenate([ids for ids, _ in one]))
            loss_mask.append(np.concatenate([mask for _, mask in one]))
            seq_start_id.append((np.cumsum(lengths) - lengths).astype(np.int32))
        columns = {"input_ids": input_ids, "loss_mask": loss_mask, "seq_start_id": seq_start_id}
        table = pa.table(columns, schema=pa.schema(list(PACKED_FIELDS.items())))
        pq.write_table(
            table,
            folder / name,
            row_group_size=STORAGE.row_group_size,
            compression=STORAGE.compression.value,
            compression_level=STORAGE.compression_level,
            use_dictionary=use_dictionary,
        )


def assert_same_rows(ours: Path, theirs: Path) -> None:
    names = sorted(path.name for path in ours.glob("shard_*.parquet"))
    assert names == sorted(path.name for path in theirs.glob("*.parquet"))
    for name in names:
        assert pq.read_table(ours / name).equals(pq.read_table(theirs / name)), name


def compare(root: Path) -> None:
    write_spool(root)
    shards = int(cut_dataset(cut_job(root)).statistics["shards"]["train"])
    ours = partial(pack_shards, pack_job(root, shards))
    tokens = sum(shard["tokens"] for shard in ours().statistics["shards"])
    names = [shard_name(number, STORAGE.format) for number in range(shards)]
    bins = {name: bins_of(stage_folder(root, OURS) / name) for name in names}
    as_is, encoded = root / "as-is", root / "encoded"
    as_is.mkdir()
    encoded.mkdir()
    contenders = {
        "ours": ours,
        "as_is": partial(list_of_arrays, bins, as_is, True),
        "encoded": partial(list_of_arrays, bins, encoded, ["loss_mask.list.element"]),
    }
    times = in_turn(REPEATS, **contenders)
    for folder in (as_is, encoded):
        assert_same_rows(stage_folder(root, OURS), folder)
    labels = {"ours": "ours", "as_is": "list of arrays", "encoded": "list of arrays, our encodings"}
    for name, label in labels.items():
        report(f"{label}: {tokens:,} tokens", f"{median(times[name]).wall:.2f} s")
    for name in ("as_is", "encoded"):
        gain = ratio(times, name, "ours")
        target = (f">= {TARGET}x", gain.wall >= TARGET) if name == "as_is" else ()
        report(f"{labels[name]} / ours", f"{gain.wall:.2f}x", *target)
        report(f"{labels[name]} / ours, in processor time", f"{gain.cpu:.2f}x")


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    root = Path(tempfile.mkdtemp(prefix="gristmill-bench-"))
    try:
        compare(root)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
