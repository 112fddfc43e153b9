"""Turn stage files into a published run: named links, blend.json, pack metadata, manifest."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from schemas.run import FileRecord, Receipt, RowLedger
from schemas.sft import BLEND, SPLITS, PackSftConfig
from tasks.run.publish import Contents, json_document, part_stages
from tasks.run.rejects import numbered, reject_links
from tasks.sft.stages import SplitPlan

_METADATA_KEYS = (
    "max_samples_per_bin",
    "dataset_max_seqlen",
    "min_packed_seqlen",
    "packing_factor",
    "packing_efficiency",
    "pack_size",
)


@dataclass(frozen=True)
class PackedSplit:
    """The packed part of one data set in one split.

    Attributes:
        dataset: name of the data set; `weight` is its weight in the blend, `pack_hash` names its folder.
        split: `train`, `valid` or `test`.
        plan: the plan's receipt; `shards` are the write receipts, in shard order.
    """

    dataset: str
    weight: float
    pack_hash: str
    split: str
    plan: Receipt
    shards: tuple[Receipt, ...]

    @property
    def folder(self) -> str:
        return f"datasets/{self.dataset}/{self.pack_hash}/{self.split}"

    def files(self) -> dict[str, list[FileRecord]]:
        """Group the files by shard path, relative to the output directory, in shard order."""
        found: dict[str, list[FileRecord]] = {}
        for receipt in self.shards:
            for record in receipt.files:
                # stages/{hash}/{shard}, and below that the arrays of a memmap folder.
                found.setdefault("/".join(PurePosixPath(record.path).parts[:3]), []).append(record)
        return found


def packed_splits(
    plans: Sequence[SplitPlan], planned: Sequence[Receipt], written: Sequence[Sequence[Receipt]]
) -> tuple[PackedSplit, ...]:
    """Join plans and written shards for publishing; plans without bins are left out."""
    return tuple(
        PackedSplit(
            plan.dataset.name, plan.dataset.weight, plan.pack_hash, plan.split, receipt, tuple(shards)
        )
        for plan, receipt, shards in zip(plans, planned, written, strict=True)
        if receipt.statistics["bins"]
    )


class _View(NamedTuple):
    """See `Publication`."""

    links: dict[str, FileRecord]
    symlinks: dict[str, str]
    documents: dict[str, bytes]


def _view(packed: Sequence[PackedSplit]) -> _View:
    """Name every shard, and build blend.json and the pack metadata.

    Args:
        packed: every data set and split with at least one bin, splits and data sets in configuration order.
    """
    view = _View({}, {}, {})
    blend: dict[str, list[str]] = {}
    metadata: dict[str, list[dict[str, Any]]] = {}
    positions: dict[str, int] = {}
    for entry in packed:
        bins = [end - start for start, end in itertools.pairwise(entry.plan.statistics["shard_bins"])]
        for shard, (stage_path, records) in enumerate(entry.files().items()):
            name = PurePosixPath(stage_path).name
            path = f"{entry.folder}/{name}"
            view.links.update({path + record.path.removeprefix(stage_path): record for record in records})
            position = positions.get(entry.split, 0)
            positions[entry.split] = position + 1
            link = f"{SPLITS}/{entry.split}/{position:06d}__{entry.dataset}__{name}"
            view.symlinks[link] = f"../../{path}"
            share = entry.weight * bins[shard] / sum(bins)
            blend.setdefault(entry.split, []).extend(
                [f"{share:.12g}", str(PurePosixPath(path).with_suffix(""))]
            )
        metadata.setdefault(entry.split, []).append({k: entry.plan.statistics[k] for k in _METADATA_KEYS})
    view.documents[BLEND] = json_document(blend)
    for split, entries in metadata.items():
        view.documents[f"pack_metadata/{split}.json"] = json_document(entries)
    return view


@dataclass(frozen=True)
class PackedRun:
    """A validated run.

    Attributes:
        spools: the tokenize receipts of every data set, by name.
        plans, planned: one plan for each split and data set, and its receipt.
        packed: every data set and split with at least one bin.
        ledger: of the whole run.
    """

    config: PackSftConfig
    spools: Mapping[str, Sequence[Receipt]]
    plans: Sequence[SplitPlan]
    planned: Sequence[Receipt]
    packed: tuple[PackedSplit, ...]
    ledger: RowLedger


def contents(run: PackedRun) -> Contents:
    """Return everything the published run contains."""
    view = _view(run.packed)
    return Contents(
        links={**view.links, **_reject_links(run)},
        symlinks=view.symlinks,
        documents=view.documents,
        ledger=run.ledger,
        statistics=run_statistics(run.packed),
        stages=_lineage(run),
    )


def _reject_links(run: PackedRun) -> dict[str, FileRecord]:
    named = [
        entry for name, receipts in run.spools.items() for entry in numbered(f"{name}-tokenize", receipts)
    ]
    named += [
        (f"{plan.dataset.name}-pack-{plan.split}", receipt)
        for plan, receipt in zip(run.plans, run.planned, strict=True)
    ]
    return reject_links(named)


def _lineage(run: PackedRun) -> dict[str, str]:
    stages: dict[str, str] = {}
    for name, receipts in run.spools.items():
        stages |= part_stages("tokenize", receipts, name)
    written = {(entry.dataset, entry.split): entry.shards for entry in run.packed}
    for plan, receipt in zip(run.plans, run.planned, strict=True):
        name = f"{plan.dataset.name}/{plan.split}"
        stages[f"plan/{name}"] = receipt.stage
        for shard in written.get((plan.dataset.name, plan.split), ())[:1]:
            stages[f"write/{name}"] = shard.stage
    return stages


def run_statistics(packed: Sequence[PackedSplit]) -> dict[str, Any]:
    """Compute totals of the run, and statistics of each data set in each split."""
    splits: dict[str, dict[str, Any]] = {}
    totals = {"bins": 0, "sequences": 0, "tokens": 0, "trained_tokens": 0, "padding_tokens": 0}
    for entry in packed:
        plan = entry.plan.statistics
        counts = {
            name: int(plan[name]) for name in ("bins", "sequences", "tokens", "padding_tokens", "shards")
        }
        counts["trained_tokens"] = sum(int(shard.statistics["trained_tokens"]) for shard in entry.shards)
        totals = {name: totals[name] + counts[name] for name in totals}
        splits.setdefault(entry.split, {})[entry.dataset] = {
            **counts,
            **{name: plan[name] for name in _METADATA_KEYS},
            **{name: plan[name] for name in plan if name.startswith("sequences_")},
        }
    return {**totals, "splits": splits}
