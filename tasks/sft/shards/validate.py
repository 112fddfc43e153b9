"""Validate packed shards: one, a folder of them, or those of a run; of any format, from Gristmill or another tool.

Files with our format version must keep every invariant. In other files, a sequence whose mask does not end with 0, or
padding that is not 0, is only a warning.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from schemas.verdict import ERROR, WARNING, Fault, Verdict
from tasks.sft.shards.find import open_shard
from tasks.sft.shards.invariants import OURS_ONLY, check_bins
from tasks.sft.shards.memmap_reader import MemmapShard
from tasks.sft.shards.shard import BadShardError, Shard
from tasks.storage.threads import map_threads


def validate_shards(
    paths: Sequence[Path | str],
    kind: str,
    where: str,
    workers: int | None = None,
    check_digests: bool = True,
) -> Verdict:
    """Validate several packed shards at the same time.

    Args:
        paths: the shards: local paths, or URIs (text) of Parquet files.
        kind: `file`, `folder` or `run`, for the verdict.
        where: the location the user named, for the verdict.
        workers: shards read at the same time; by default the number of cores.
        check_digests: compare the digests that memmap and npy shards state; the manifest of a run has them, too.
    """
    results = map_threads(
        lambda path: validate_shard(path, check_digests), paths, workers or os.cpu_count() or 1
    )
    counts: dict[str, int] = {"files": len(paths)}
    faults: list[Fault] = []
    for verdict in results:
        faults += verdict.faults
        for name, value in verdict.counts.items():
            if name != "pack_size":
                counts[name] = counts.get(name, 0) + value
    sizes = {verdict.counts["pack_size"] for verdict in results if "pack_size" in verdict.counts}
    if len(sizes) > 1:
        detail = f"the shards have different pack sizes: {', '.join(map(str, sorted(sizes)))}"
        faults.append(Fault(where=where, rule="one_pack_size", detail=detail))
    return Verdict(path=where, kind=kind, counts=counts, faults=tuple(faults))


def validate_shard(path: Path | str, check_digests: bool = True) -> Verdict:
    """Validate one packed shard.

    Counts in the verdict: `bins`, `sequences`, `tokens`, `trained_tokens`, and `pack_size` if the file states it.
    """
    name = str(path)
    try:
        with open_shard(path) as shard:
            verdict = _check_rows(shard, name)
            return verdict.model_copy(
                update={"faults": verdict.faults + tuple(_changed(shard) if check_digests else ())}
            )
    except BadShardError as error:
        faults = tuple(Fault(where=error.where, rule=rule, detail=detail) for rule, detail in error.findings)
        return Verdict(path=name, kind="file", faults=faults)


def _changed(shard: Shard) -> Iterator[Fault]:
    for path, stated, found in shard.digests():
        if stated != found:
            detail = f"the shard says it was written with SHA-256 {stated}, found {found}; fetch it again"
            yield Fault(where=str(path), rule="digest", detail=detail)


def _check_rows(shard: Shard, name: str) -> Verdict:
    metadata = shard.metadata
    limits = metadata.limits()
    counts = {"bins": 0, "sequences": 0, "tokens": 0, "trained_tokens": 0}
    found: dict[str, tuple[int, int, str]] = {}
    for bins in shard.blocks():
        for rule, rows, detail in check_bins(bins, limits):
            _note(found, rule, counts["bins"] + rows, detail)
        counts["bins"] += bins.num_bins
        counts["sequences"] += len(bins.starts)
        counts["tokens"] += len(bins.ids)
        counts["trained_tokens"] += int((bins.mask != 0).sum())
    if isinstance(shard, MemmapShard):
        _note(found, "padding_is_0", shard.unclean_rows(), "the row has non-zero values after its last token")
    faults = [
        Fault(
            where=f"{name}:{row}",
            rule=rule,
            detail=detail,
            level=WARNING if rule in OURS_ONLY and metadata.version is None else ERROR,
            count=count,
        )
        for rule, (row, count, detail) in found.items()
    ]
    if limits.pack_size is not None:
        counts["pack_size"] = limits.pack_size
    return Verdict(path=name, kind="file", counts=counts, faults=tuple(faults))


def _note(found: dict[str, tuple[int, int, str]], rule: str, rows: NDArray[np.int64], detail: str) -> None:
    if len(rows):
        first, count, kept = found.get(rule, (int(rows[0]), 0, detail))
        found[rule] = (first, count + len(rows), kept)
