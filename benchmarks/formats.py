"""Writers of packed shards: speed of memmap, memory of Parquet and memmap, size of Parquet on real and random tokens.

    python -m benchmarks.formats  # about a minute, on two cores, 1 GB in the folder for temporary files

The loop that memmap is compared with opens both arrays with `open_memmap` and assigns bin by bin; it flushes them at
its end, as a file that must be there after a crash needs. Ours writes the same rows, flushes, hashes, renames. Real
tokens are the packed run of this Python's docstrings, or of a chat file named on the command line, with the real
tokenizer of 128k ids. Memory is what tracemalloc counts as the peak.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import tempfile
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import deepseek_folder, in_turn, median, pack_sft_in_this_thread, ratio, report
from schemas.sft import StorageConfig, StorageFormat
from tasks.demo.docstrings import docstring_chats
from tasks.packing.arrays import lengths_to_offsets
from tasks.sft.shards.bins import Bins
from tasks.sft.shards.find import find_shards, open_shard
from tasks.sft.shards.shard import ShardMetadata
from tasks.sft.shards.writers import open_writer

BINS, WIDTH, REPEATS = 4000, 4096, 7
MEMORY_BINS, MEMORY_TOKENS = 10_000, 2000
MEMMAP_SPEED = 2.5
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<｜Assistant｜>"
    "{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}"
    "{% else %}<｜User｜>{{ m.content }}{% endif %}{% endfor %}"
)


def random_bins(bins: int, lengths: NDArray[np.int64], seed: int = 0) -> Bins:
    """Random ids below 50,000 with random masks, ten sequences a bin."""
    rng = np.random.default_rng(seed)
    offsets = lengths_to_offsets(lengths)
    starts = np.sort(rng.random((bins, 9)), axis=1) * (lengths[:, None] - 12)
    starts = np.concatenate((np.zeros((bins, 1)), starts + np.arange(1, 10)), axis=1)
    return Bins(
        rng.integers(0, 50_000, int(offsets[-1]), np.int32),
        rng.integers(0, 2, int(offsets[-1]), np.uint8),
        offsets,
        starts.astype(np.int32).ravel(),
        np.arange(0, 10 * bins + 1, 10),
    )


def ours(folder: Path, bins: Bins) -> None:
    storage = StorageConfig(format=StorageFormat.MEMMAP)
    with open_writer(folder / "ours", storage, ShardMetadata(), bins.num_bins, WIDTH) as writer:
        writer.write_block(bins)
        writer.finalize()


def by_loop(folder: Path, bins: Bins) -> None:
    """A bin at a time into two mapped arrays; the index arrays at the end."""
    target = folder / "loop"
    target.mkdir(exist_ok=True)
    shape = (bins.num_bins, WIDTH)
    ids = np.lib.format.open_memmap(target / "input_ids.npy", "w+", np.int32, shape)
    mask = np.lib.format.open_memmap(target / "loss_mask.npy", "w+", np.uint8, shape)
    starts = []
    for index in range(bins.num_bins):
        low, high = bins.token_offsets[index], bins.token_offsets[index + 1]
        ids[index, : high - low] = bins.input_ids[low:high]
        mask[index, : high - low] = bins.loss_mask[low:high]
        starts.append(bins.seq_starts[bins.seq_offsets[index] : bins.seq_offsets[index + 1]])
    ids.flush()
    mask.flush()
    np.save(target / "packed_len.npy", np.diff(bins.token_offsets).astype(np.uint32))
    np.save(target / "seq_offsets.npy", bins.seq_offsets.astype(np.uint32))
    np.save(target / "seq_starts.npy", np.concatenate(starts).astype(np.uint32))


def digested(root: Path, bins: Bins) -> None:
    """The loop, and the SHA-256 of what it wrote, which ours has on the way."""
    by_loop(root, bins)
    for path in (root / "loop").iterdir():
        with path.open("rb") as file:
            hashlib.file_digest(file, "sha256").hexdigest()


def speed(root: Path) -> None:
    rng = np.random.default_rng(1)
    # As full as packing makes them.
    bins = random_bins(BINS, WIDTH - rng.integers(0, 8, BINS))

    for name in ("ours", "loop"):
        (root / name).mkdir(exist_ok=True)
    times = in_turn(
        REPEATS,
        ours=partial(ours, root, bins),
        loop=partial(by_loop, root, bins),
        digested=partial(digested, root, bins),
    )
    for name in ("input_ids", "loss_mask", "packed_len", "seq_offsets", "seq_starts"):
        same = np.array_equal(np.load(root / "ours" / f"{name}.npy"), np.load(root / "loop" / f"{name}.npy"))
        if not same:
            raise RuntimeError(f"{name} differs")
    report(f"memmap, {BINS:,} x {WIDTH:,}: ours", f"{median(times['ours']).wall * 1000:.0f} ms")
    report("open_memmap, bin by bin", f"{median(times['loop']).wall * 1000:.0f} ms")
    gain = ratio(times, "loop", "ours")
    report("loop / ours", f"{gain.wall:.2f}x", f">= {MEMMAP_SPEED}x", gain.wall >= MEMMAP_SPEED)
    report("loop / ours, in processor time", f"{gain.cpu:.2f}x")
    report("loop that gives digests too / ours", f"{ratio(times, 'digested', 'ours').wall:.2f}x")


def traced_peak(root: Path, storage: StorageConfig) -> float:
    """Peak megabytes of writing 10,000 bins of 2,000 tokens one by one, as another tool's loop would."""
    rng = np.random.default_rng(2)
    ids, mask = rng.integers(0, 50_000, MEMORY_TOKENS, np.int32), rng.integers(0, 2, MEMORY_TOKENS, np.uint8)
    starts = np.array([0, 500, 1500], np.int32)
    target = root / f"traced-{storage.format}"
    tracemalloc.start()
    with open_writer(target, storage, ShardMetadata(), MEMORY_BINS, MEMORY_TOKENS) as writer:
        for bin_id in range(MEMORY_BINS):
            writer.write_bin(bin_id, ids.copy(), mask.copy(), starts.copy())
        writer.finalize()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


def memory(root: Path) -> None:
    for storage_format, limit in (
        (StorageFormat.PARQUET, 50),
        (StorageFormat.MEMMAP, 100),
        (StorageFormat.NPY, None),
    ):
        storage = StorageConfig(format=storage_format, row_group_size=100)
        peak = traced_peak(root, storage)
        target = () if limit is None else (f"< {limit} MB", peak < limit)
        report(f"{storage_format}, 10,000 x 2,000: tracemalloc peak", f"{peak:.1f} MB", *target)


def compressed(root: Path, name: str, blocks: list[Bins], most: float) -> None:
    """Bytes of zstd Parquet over the bytes of its tokens as int32 and its mask as uint8."""
    target = root / f"{name}.parquet"
    bins, tokens = (
        sum(counts) for counts in zip(*((b.num_bins, len(b.input_ids)) for b in blocks), strict=True)
    )
    with open_writer(target, StorageConfig(), ShardMetadata(), bins, 0) as writer:
        for block in blocks:
            writer.write_block(block)
        writer.finalize()
    share = target.stat().st_size / (5 * tokens)
    report(f"Parquet / raw, {name} ({tokens:,} tokens)", f"{share:.3f}", f"<= {most}", share <= most)


def real_blocks(root: Path, chats: Path | None) -> list[Bins]:
    """The training bins of a packed run."""
    if chats is None:
        chats = root / "docstrings.jsonl"
        chats.write_text("".join(json.dumps(row) + "\n" for row in docstring_chats()))
    raw: dict[str, Any] = {
        "output_dir": str(root / "run"),
        "datasets": [{"name": "chats", "path": str(chats)}],
        "tokenizer": {"path": str(deepseek_folder()), "chat_template": TEMPLATE},
        "max_reject_fraction": 0.5,
    }
    pack_sft_in_this_thread(raw)
    blocks = []
    for path in find_shards(root / "run", "train"):
        with open_shard(path) as shard:
            blocks += [
                Bins(b.ids, b.mask, b.ids_offsets, b.starts, b.starts_offsets)
                for b in shard.blocks(rows=256)  # type: ignore[arg-type]
            ]
    return blocks


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("chats", nargs="?", type=Path, help="a chat file; default docstrings of this Python")
    chats = parser.parse_args().chats
    root = Path(tempfile.mkdtemp(prefix="gristmill-bench-"))
    try:
        speed(root)
        memory(root)
        compressed(root, "real", real_blocks(root, chats), 0.35)
        lengths = np.full(BINS, WIDTH)
        compressed(root, "random", [random_bins(BINS, lengths)], 0.66)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
