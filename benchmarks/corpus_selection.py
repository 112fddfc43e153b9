"""Hashing and selecting document ids: against hashlib in a loop, against a loop with a heap, and at scale.

    python benchmarks/corpus_selection.py           # ratios, on one core
    python benchmarks/corpus_selection.py --large   # 10 M of 200 M ids in two processes

The contenders run in turn, several times over, and the medians are compared. Every line gives a name, a
figure, its target, and whether it is met.
"""

from __future__ import annotations

import argparse
import heapq
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from hashlib import md5
from pathlib import Path

import numpy as np

from tasks.corpus.selection import cutoff as cutoffs
from tasks.corpus.selection.md5 import hash_rows

SEED, BUCKET = 42, "4"
REPEATS = 7
HASHLIB_ROWS = 200_000
VECTOR_ROWS = 2_000_000
SELECT_FILES, SELECT_FILE_ROWS, SELECT_COUNT = 4, 150_000, 150_000
LARGE_FILES, LARGE_FILE_ROWS, LARGE_COUNT = 200, 1_000_000, 10_000_000
LARGE_BATCH_IDS = 20_000_000
LARGE_PROCESSES = 2
EXACT_FILES, EXACT_COUNT = 8, 400_000


def path_of(file: int) -> str:
    return f"data/train-{file:05d}-of-00200.parquet"


def hashlib_hash(file: int, row: int) -> int:
    identity = f"{BUCKET}#{path_of(file)}#{row}"
    return int.from_bytes(md5(f"{SEED}_{identity}".encode(), usedforsecurity=False).digest()[:8], "big")


def hashlib_loop(num_rows: int) -> list[int]:
    """The fastest plain loop: the id's prefix is made once."""
    prefix = f"{SEED}_{BUCKET}#{path_of(0)}#"
    return [
        int.from_bytes(md5(f"{prefix}{row}".encode(), usedforsecurity=False).digest()[:8], "big")
        for row in range(num_rows)
    ]


def heap_select(num_files: int, file_rows: int, count: int) -> list[tuple[int, int, int]]:
    """The rule as its authors describe it: a loop over all ids and a heap of the smallest so far."""
    heap: list[tuple[int, int, int]] = []
    for file in range(num_files):
        for row in range(file_rows):
            item = (-hashlib_hash(file, row), -file, -row)
            if len(heap) < count:
                heapq.heappush(heap, item)
            elif item > heap[0]:
                heapq.heapreplace(heap, item)
    return heap


def band_select(
    num_files: int,
    file_rows: int,
    count: int,
    batch_ids: int,
    run: Callable[..., Iterable[cutoffs.BandCount]] = map,
) -> cutoffs.Cutoff:
    paths = [path_of(file) for file in range(num_files)]
    batches = cutoffs.split_batches([file_rows] * num_files, batch_ids)

    def scan_all(edges: cutoffs.Band) -> Iterable[cutoffs.BandCount]:
        return run(partial(cutoffs.scan, seed=SEED, bucket=BUCKET, paths=paths, edges=edges), batches)

    return cutoffs.find_cutoff(count, num_files * file_rows, scan_all)


def keep_all_files(num_files: int, file_rows: int, last: cutoffs.Cutoff) -> list[tuple[int, int]]:
    """What the shards do afterwards: hash their own rows again and compare."""
    kept = []
    for file in range(num_files):
        mask = cutoffs.keep_rows(SEED, BUCKET, path_of(file), cutoffs.IdRange(file, 0, file_rows), last)
        kept += [(file, row) for row in np.flatnonzero(mask).tolist()]
    return kept


def seconds(job: Callable[[], object]) -> float:
    start = time.perf_counter()
    job()
    return time.perf_counter() - start


def medians(**contenders: Callable[[], object]) -> dict[str, float]:
    """Median seconds of each, run in turn so that a slow moment of the machine meets all of them."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(REPEATS):
        for name, job in contenders.items():
            times[name].append(seconds(job))
    return {name: statistics.median(values) for name, values in times.items()}


def report(name: str, figure: str, target: str = "-", met: bool | None = None) -> None:
    verdict = "-" if met is None else "met" if met else "not met"
    print(f"{name:<46} {figure:>16}   {target:<12} {verdict}", flush=True)


def compare_hashing() -> None:
    assert hash_rows(SEED, BUCKET, path_of(0), 0, 20_000).tolist() == hashlib_loop(20_000)
    median = medians(
        hashlib=lambda: hashlib_loop(HASHLIB_ROWS),
        ours=lambda: hash_rows(SEED, BUCKET, path_of(0), 0, VECTOR_ROWS),
    )
    loop, ours = HASHLIB_ROWS / median["hashlib"], VECTOR_ROWS / median["ours"]
    report("hash: hashlib loop", f"{loop / 1e6:.2f} M/s")
    report("hash: vectorised", f"{ours / 1e6:.2f} M/s")
    report("hash: vectorised / hashlib loop", f"{ours / loop:.1f}x", ">= 8x", ours / loop >= 8)


def compare_selection() -> None:
    size = (SELECT_FILES, SELECT_FILE_ROWS)
    wanted = heap_select(*size, SELECT_COUNT)
    last = band_select(*size, SELECT_COUNT, LARGE_BATCH_IDS)
    same = sorted((-file, -row) for _, file, row in wanted) == keep_all_files(*size, last)
    name = f"select: {SELECT_COUNT} of {SELECT_FILES * SELECT_FILE_ROWS}, same rows as the heap"
    report(name, str(same), "True", same)

    def both() -> None:
        cutoff = band_select(*size, SELECT_COUNT, LARGE_BATCH_IDS)
        for file in range(SELECT_FILES):
            cutoffs.keep_rows(SEED, BUCKET, path_of(file), cutoffs.IdRange(file, 0, SELECT_FILE_ROWS), cutoff)

    median = medians(
        heap=lambda: heap_select(*size, SELECT_COUNT),
        ours=lambda: band_select(*size, SELECT_COUNT, LARGE_BATCH_IDS),
        both=both,
    )
    total = SELECT_FILES * SELECT_FILE_ROWS
    for name, what in (("heap", "loop and heap"), ("ours", "cutoff"), ("both", "cutoff + all keep masks")):
        report(f"select: {what}", f"{total / median[name] / 1e6:.2f} M/s")
    ratio = median["heap"] / median["ours"]
    report("select: cutoff / loop and heap", f"{ratio:.1f}x", ">= 25x", ratio >= 25)
    report("select: cutoff + all keep masks / loop and heap", f"{median['heap'] / median['both']:.1f}x")


def peak_megabytes() -> float:
    """Peak resident memory of this process, without what its parent had before it started it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status has no VmHWM: peak memory is measured on Linux only")


def select_large() -> None:
    total = LARGE_FILES * LARGE_FILE_ROWS
    start = time.perf_counter()
    with ProcessPoolExecutor(LARGE_PROCESSES, multiprocessing.get_context("spawn")) as pool:
        last = band_select(LARGE_FILES, LARGE_FILE_ROWS, LARGE_COUNT, LARGE_BATCH_IDS, pool.map)
    took = time.perf_counter() - start
    peak = peak_megabytes()
    name = f"large: {LARGE_COUNT // 10**6} M of {total // 10**6} M ids, {LARGE_PROCESSES} processes"
    report(name, f"{took:.1f} s")
    report("large: rate, both processes", f"{total / took / 1e6:.1f} M/s")
    report("large: extrapolated to 1 B ids", f"{1e9 / total * took:.0f} s")
    report("large: parent peak RSS", f"{peak:.0f} MB", "<= 100 MB", peak <= 100)

    # Not part of the peak: the check itself needs all hashes of 8 M ids at once.
    share = last.hash / 2**64 * total / LARGE_COUNT
    near = abs(share - 1) < 6 * LARGE_COUNT**-0.5
    report("large: cutoff's share of all hashes / k of N", f"{share:.6f}", "1 +- 6 sd", near)
    hashes = [hash_rows(SEED, BUCKET, path_of(file), 0, LARGE_FILE_ROWS) for file in range(EXACT_FILES)]
    smaller = band_select(EXACT_FILES, LARGE_FILE_ROWS, EXACT_COUNT, 3_000_000)
    at = int(np.argsort(np.concatenate(hashes), kind="stable")[EXACT_COUNT - 1])
    wanted = (int(hashes[at // LARGE_FILE_ROWS][at % LARGE_FILE_ROWS]), *divmod(at, LARGE_FILE_ROWS))
    name = f"large: {EXACT_COUNT} of {EXACT_FILES} M ids equal a full sort"
    report(name, str(smaller == wanted), "True", smaller == wanted)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--large", action="store_true", help="select 10 M of 200 M ids in two processes")
    if parser.parse_args().large:
        select_large()
    else:
        compare_hashing()
        compare_selection()


if __name__ == "__main__":
    main()
