"""A packed run before it is published: its splits, its statistics, and what its user must know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from schemas.run import FileRecord, Receipt, RowLedger
from schemas.sft import Mix, PackSftConfig
from tasks.report.numbers import counted, share
from tasks.run.limits import total_ledger
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
class Mixture:
    """How often `splits/train` names the shards of a data set, so that its share of the tokens is that of its weight.

    Attributes:
        times: how often it names all shards; `more`: so many shards, from the first, once more.
        rest: the receipt of a shard with the first rows of the next one, named once; `None` if nothing is missing.
    """

    times: int = 1
    more: int = 0
    rest: Receipt | None = None


@dataclass(frozen=True)
class PackedShard:
    """A published shard.

    Attributes:
        name: of the file or folder.
        times: how often its split names it.
        counts: what it holds; see `tasks.sft.pack`.
        records: its files, relative to the output directory; `provenance`: the file that says where its sequences
            came from.
    """

    name: str
    times: int
    counts: Mapping[str, int]
    records: tuple[FileRecord, ...]
    provenance: FileRecord

    @property
    def path(self) -> str:
        """Where it lies, relative to the output directory."""
        return "/".join(PurePosixPath(self.records[0].path).parts[:3])


@dataclass(frozen=True)
class PackedSplit:
    """The packed part of one data set in one split.

    Attributes:
        dataset: name of the data set; `weight` is its weight in the blend, `pack_hash` names its folder.
        split: `train`, `valid` or `test`.
        receipts: of its jobs, in shard order; `size` is the pack size.
        mixture: which of its shards are published, and how often they are named.
        intervals: into how many the split was cut; one without sequences has no shard.
    """

    dataset: str
    weight: float
    pack_hash: str
    split: str
    size: int
    receipts: tuple[Receipt, ...]
    intervals: int = 1
    mixture: Mixture = Mixture()

    @property
    def folder(self) -> str:
        return f"datasets/{self.dataset}/{self.pack_hash}/{self.split}"

    @cached_property
    def packed(self) -> list[dict[str, int]]:
        """What each shard that was made holds, in shard order."""
        return [shard for receipt in self.receipts for shard in receipt.statistics["shards"]]

    @cached_property
    def shards(self) -> list[PackedShard]:
        """The shards to publish, in order."""
        mixture = self.mixture
        made = [shard for receipt in self.receipts for shard in _shards(receipt)]
        times = [mixture.times + (number < mixture.more) for number in range(len(made))]
        found = [replace(shard, times=n) for shard, n in zip(made, times, strict=True) if n]
        if mixture.rest is not None:
            # Its rows are in another shard too, perhaps a published one, so it has a name of its own.
            for shard in _shards(mixture.rest):
                stem, dot, suffix = shard.name.partition(".")
                found.append(replace(shard, name=f"{stem[:-6]}{self.intervals:06d}{dot}{suffix}"))
        return found

    @cached_property
    def not_selected(self) -> int:
        """Rows that fitted, and that the mixture leaves out."""
        if self.mixture.times:
            return 0
        rest = self.mixture.rest
        taken = sum(shard["rows"] for shard in self.packed[: self.mixture.more])
        taken += rest.ledger.rows_used if rest is not None and rest.ledger is not None else 0
        return sum(shard["rows"] for shard in self.packed) - taken

    def figures(self, name: str) -> list[FileRecord]:
        """Return the files that count `lengths` of sequences or `fills` of bins, one a published shard."""
        taken = {shard.provenance.path for shard in self.shards}
        rest = () if self.mixture.rest is None else (self.mixture.rest,)
        records = [record for receipt in (*self.receipts, *rest) for record in receipt.files]
        names = {path.replace("provenance-", f"{name}-").replace(".parquet", ".npy") for path in taken}
        return [record for record in records if record.path in names]

    @cached_property
    def statistics(self) -> dict[str, Any]:
        """Add up the published shards, each once; the names trainers read are of runtime lengths."""
        shards = [shard.counts for shard in self.shards]
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

    def shown(self, name: str) -> int:
        """Return what a trainer that opens the folder of the split sees: shards as often as they are named."""
        return sum(shard.times * shard.counts[name] for shard in self.shards)


def tokens_of(counts: Mapping[str, int]) -> int:
    """Return the tokens of a shard without padding."""
    return counts["tokens"] - counts["padding_tokens"]


def _shards(receipt: Receipt) -> list[PackedShard]:
    """Return the shards of a job, in order."""
    files: dict[str, list[FileRecord]] = {}
    beside: dict[str, FileRecord] = {}
    for record in receipt.files:
        # stages/{hash}/{shard}, and below that the arrays of a memmap folder.
        name = PurePosixPath(record.path).parts[2]
        if name.startswith("shard_"):
            files.setdefault(name, []).append(record)
        elif name.startswith("provenance-"):
            beside[name.removeprefix("provenance-").partition(".")[0]] = record
    return [
        PackedShard(name, 1, counts, tuple(records), beside[f"{counts['shard']:06d}"])
        for (name, records), counts in zip(files.items(), receipt.statistics["shards"], strict=True)
    ]


def made_split(split: SplitShards, receipts: Sequence[Receipt]) -> PackedSplit:
    """Join the jobs of a split and what they made."""
    dataset = split.dataset
    return PackedSplit(
        dataset.name,
        dataset.weight,
        split.pack_hash,
        split.split,
        split.jobs[0].pack.size,
        tuple(receipts),
        split.jobs[-1].end_shard,
    )


@dataclass(frozen=True)
class PackedRun:
    """A validated run.

    Attributes:
        screened: the receipt of each data set's first rows, in configuration order.
        spools: the tokenize receipts of every data set, by name.
        cuts: the receipt of each data set's cuts, in configuration order.
        repeats: the receipts of the search for equal conversations in different groups.
        made: every data set in every split, by split; `packed`: those with at least one bin.
        ledger: of the whole run.
        validated: the receipts of the validation.
    """

    config: PackSftConfig
    screened: Sequence[Receipt]
    spools: Mapping[str, Sequence[Receipt]]
    cuts: Sequence[Receipt]
    repeats: Sequence[Receipt]
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
        shown = {"shown_bins": entry.shown("bins"), "shown_tokens": entry.shown("tokens")}
        shown["shown_tokens"] -= entry.shown("padding_tokens")
        splits.setdefault(entry.split, {})[entry.dataset] = {
            **entry.statistics,
            **shown,
            "weight": entry.weight,
        }
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
    """Add, for each data set of a split, its share of the tokens, the share its weight asks for, and epochs.

    The shares are of what a trainer sees that opens the folder of the split. `epochs` says how often a blend that
    follows the weights shows each bin of the data set while it shows as many bins as that folder.
    """
    bins = sum(counts["shown_bins"] for counts in datasets.values())
    tokens = sum(counts["shown_tokens"] for counts in datasets.values())
    asked = normalised([counts["weight"] for counts in datasets.values()])
    for counts, weight in zip(datasets.values(), asked, strict=True):
        counts["share"] = round(counts["shown_tokens"] / tokens, 6)
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
    # Of everything that was packed: a mixture may leave some of it out.
    cut, tokens = (
        statistics["tokens_cut"],
        sum(tokens_of(shard) for entry in run.made for shard in entry.packed),
    )
    if cut:
        pack = run.config.pack
        yield (
            f"pack.overflow {pack.overflow} left out {counted(cut, 'token')} ({share(cut, cut + tokens)}) of "
            f"sequences longer than pack.size {pack.size}: {statistics['sequences_truncated']:,} truncated, "
            f"{statistics['sequences_split']:,} split, {statistics['sequences_dropped']:,} dropped"
        )
    if empty := statistics["empty_answers"]:
        yield f"{counted(empty, 'empty assistant turn')} in the input; drop_empty: true rejects such conversations"
    if run.config.mix is Mix.NATURAL:
        yield from _weights(splits.get("train", {}))


def _fate(run: PackedRun, split: str, dataset: str) -> str:
    """Say why nothing of a data set is in a split."""
    made = [entry for entry in run.made if (entry.split, entry.dataset) == (split, dataset)]
    if any(entry.not_selected for entry in made):
        return "its share is less than half a conversation"
    ledger = total_ledger(receipt for entry in made for receipt in entry.receipts)
    if not ledger.rows_in:
        return "no conversation fell into it"
    if ledger.duplicates == ledger.rows_in:
        # With groups, the first of equal conversations may be in another split.
        return f"all of its {counted(ledger.rows_in, 'conversation')} are duplicates"
    return f"none of its {counted(ledger.rows_in - ledger.duplicates, 'conversation')} fitted"


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
        "blend.json follows the weights, unless mix is downsample or upsample"
    )
