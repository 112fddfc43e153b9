"""A packed run before it is published: its splits, its statistics, and what its user must know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from schemas.run import FileRecord, Receipt, RowLedger
from schemas.sft import PackSftConfig
from tasks.report.numbers import counted, share
from tasks.sft.datasets.blending import normalised
from tasks.sft.order.fit import OVERFLOW_COUNTS
from tasks.sft.screen import screening_warnings
from tasks.sft.stages import SplitShards

METADATA_KEYS = (
    "max_samples_per_bin",
    "dataset_max_seqlen",
    "min_packed_seqlen",
    "packing_factor",
    "packing_efficiency",
    "pack_size",
)
# What is added up over shards.
_SUMS = ("bins", "sequences", "tokens", "padding_tokens", "trained_tokens")

# A data set whose share of the bins is closer to its weight's than this, and not a half more or less, is taken as
# having it.
_SHARE_TOLERANCE = 0.005
_RATIO_TOLERANCE = 1.5


@dataclass(frozen=True)
class PackedSplit:
    """The packed part of one data set in one split.

    Attributes:
        dataset: name of the data set; `weight` is its weight in the blend, `pack_hash` names its folder.
        split: `train`, `valid` or `test`.
        receipts: of its jobs, in shard order; `size` is the pack size.
    """

    dataset: str
    weight: float
    pack_hash: str
    split: str
    size: int
    receipts: tuple[Receipt, ...]

    @property
    def folder(self) -> str:
        return f"datasets/{self.dataset}/{self.pack_hash}/{self.split}"

    def files(self) -> dict[str, list[FileRecord]]:
        """Group the files of shards by their path, relative to the output directory, in shard order."""
        found: dict[str, list[FileRecord]] = {}
        for record in self._records("shard_"):
            # stages/{hash}/{shard}, and below that the arrays of a memmap folder.
            found.setdefault("/".join(PurePosixPath(record.path).parts[:3]), []).append(record)
        return found

    def provenance(self) -> list[FileRecord]:
        """Return the file of each shard that says where its sequences came from, in shard order."""
        return self._records("provenance-")

    def figures(self, name: str) -> list[FileRecord]:
        """Return the files that count `lengths` of sequences or `fills` of bins."""
        return self._records(f"{name}-")

    def _records(self, prefix: str) -> list[FileRecord]:
        return [
            record
            for receipt in self.receipts
            for record in receipt.files
            if PurePosixPath(record.path).parts[2].startswith(prefix)
        ]

    @property
    def shards(self) -> list[dict[str, int]]:
        """What each shard holds, in shard order; intervals without sequences have none."""
        return [shard for receipt in self.receipts for shard in receipt.statistics["shards"]]

    @cached_property
    def statistics(self) -> dict[str, Any]:
        """Add up the shards; the names trainers read are of runtime lengths."""
        shards = self.shards
        sums = {name: sum(shard[name] for shard in shards) for name in (*_SUMS, "runtime_tokens")}
        bins, runtime = sums["bins"], sums.pop("runtime_tokens")
        return {
            **sums,
            "shards": len(shards),
            "max_samples_per_bin": max((shard["max_samples_per_bin"] for shard in shards), default=0),
            "dataset_max_seqlen": max((shard["dataset_max_seqlen"] for shard in shards), default=0),
            "min_packed_seqlen": min((shard["min_packed_seqlen"] for shard in shards), default=0),
            "packing_factor": round(sums["sequences"] / bins, 4) if bins else 0.0,
            "packing_efficiency": round(100 * runtime / (bins * self.size), 4) if bins else 0.0,
            "pack_size": self.size,
            **{
                name: sum(int(receipt.statistics[name]) for receipt in self.receipts)
                for name in OVERFLOW_COUNTS
            },
        }


def made_split(split: SplitShards, receipts: Sequence[Receipt]) -> PackedSplit:
    """Join the jobs of a split and what they made."""
    dataset = split.dataset
    return PackedSplit(
        dataset.name, dataset.weight, split.pack_hash, split.split, split.jobs[0].pack.size, tuple(receipts)
    )


@dataclass(frozen=True)
class PackedRun:
    """A validated run.

    Attributes:
        screened: the receipt of each data set's first rows, in configuration order.
        spools: the tokenize receipts of every data set, by name.
        cuts: the receipt of each data set's cuts, in configuration order.
        made: every data set in every split, by split; `packed`: those with at least one bin.
        ledger: of the whole run.
        validated: the receipts of the validation.
    """

    config: PackSftConfig
    screened: Sequence[Receipt]
    spools: Mapping[str, Sequence[Receipt]]
    cuts: Sequence[Receipt]
    made: Sequence[PackedSplit]
    packed: tuple[PackedSplit, ...]
    ledger: RowLedger
    validated: Sequence[Receipt]

    @cached_property
    def statistics(self) -> dict[str, Any]:
        """Return the totals of the run, and statistics of each data set in each split."""
        return _statistics(self)


def _statistics(run: PackedRun) -> dict[str, Any]:
    """Compute totals of the run, and statistics of each data set in each split.

    What `pack.overflow` lost is counted over everything that was planned: also where nothing of a data set was left.
    """
    totals = dict.fromkeys(_SUMS, 0)
    splits: dict[str, dict[str, Any]] = {}
    for entry in run.packed:
        totals = {name: totals[name] + entry.statistics[name] for name in totals}
        splits.setdefault(entry.split, {})[entry.dataset] = {**entry.statistics, "weight": entry.weight}
    for datasets in splits.values():
        _add_shares(datasets)
    spools = [receipt for receipts in run.spools.values() for receipt in receipts]
    return {
        **totals,
        **{name: sum(entry.statistics[name] for entry in run.made) for name in OVERFLOW_COUNTS},
        "empty_answers": sum(int(receipt.statistics["empty_answers"]) for receipt in spools),
        "missing": _missing(run),
        "splits": splits,
    }


def _add_shares(datasets: dict[str, Any]) -> None:
    """Add, for each data set of a split, its share of the bins, the share its weight asks for, and epochs.

    `epochs` says how often a blend that follows the weights shows each bin of the data set while it shows as many
    bins as the split has.
    """
    bins = sum(counts["bins"] for counts in datasets.values())
    asked = normalised([counts["weight"] for counts in datasets.values()])
    for counts, weight in zip(datasets.values(), asked, strict=True):
        counts["share"] = round(counts["bins"] / bins, 6)
        counts["weight_share"] = round(weight, 6)
        counts["epochs"] = round(weight * bins / counts["bins"], 4)


def _missing(run: PackedRun) -> dict[str, list[str]]:
    """Return, for each configured split, the data sets of which it has nothing."""
    present = {(entry.split, entry.dataset) for entry in run.packed}
    missing: dict[str, list[str]] = {}
    for entry in run.made:
        if (entry.split, entry.dataset) not in present:
            missing.setdefault(entry.split, []).append(entry.dataset)
    return missing


def warnings(run: PackedRun) -> tuple[str, ...]:
    """Say what was lost or may surprise: each a sentence for the log, the summary and the report."""
    return tuple(_warnings(run))


def _warnings(run: PackedRun) -> Iterator[str]:
    statistics = run.statistics
    splits = statistics["splits"]
    yield from screening_warnings(run.config, run.screened)
    for split, names in statistics["missing"].items():
        if split not in splits:
            yield f"the split {split} is empty: it is not published, and blend.json does not name it"
            continue
        for name in names:
            yield f"the split {split} has nothing from the data set {name}: {_fate(run, split, name)}"
    cut, tokens = statistics["tokens_cut"], statistics["tokens"] - statistics["padding_tokens"]
    if cut:
        pack = run.config.pack
        yield (
            f"pack.overflow {pack.overflow} left out {counted(cut, 'token')} ({share(cut, cut + tokens)}) of "
            f"sequences longer than pack.size {pack.size}: {statistics['sequences_truncated']:,} truncated, "
            f"{statistics['sequences_split']:,} split, {statistics['sequences_dropped']:,} dropped"
        )
    if empty := statistics["empty_answers"]:
        yield f"{counted(empty, 'empty assistant turn')} in the input; drop_empty: true rejects such conversations"
    yield from _weights(splits.get("train", {}))


def _fate(run: PackedRun, split: str, dataset: str) -> str:
    """Say why nothing of a data set is in a split."""
    rows = sum(
        receipt.ledger.rows_in
        for entry in run.made
        if (entry.split, entry.dataset) == (split, dataset)
        for receipt in entry.receipts
        if receipt.ledger is not None
    )
    return f"none of its {counted(rows, 'conversation')} fitted" if rows else "no conversation fell into it"


def _weights(train: Mapping[str, Any]) -> Iterator[str]:
    """Warn if weights were set that a trainer ignores if it opens the shards of a split rather than blend.json."""
    if all(counts["weight"] == 1 for counts in train.values()):
        return
    off = {name: abs(counts["share"] - counts["weight_share"]) for name, counts in train.items()}
    ratios = (counts["share"] / counts["weight_share"] for counts in train.values())
    if max(off.values()) <= _SHARE_TOLERANCE and all(
        1 / _RATIO_TOLERANCE < ratio < _RATIO_TOLERANCE for ratio in ratios
    ):
        return
    # The data sets furthest off, in configuration order.
    shown = set(sorted(off, key=lambda name: -off[name])[:4])
    real = "/".join(share(counts["share"]) for name, counts in train.items() if name in shown)
    asked = "/".join(share(counts["weight_share"]) for name, counts in train.items() if name in shown)
    names = ", ".join(name for name in train if name in shown)
    yield (
        f"a trainer that opens splits/train sees {real} ({names}), the weights ask for {asked}; only a reader of "
        "blend.json follows the weights"
    )
