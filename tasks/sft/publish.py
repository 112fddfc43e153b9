"""From stage files to a published run: links under their names, blend.json, pack metadata, manifest."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from schemas.run import FileRecord, InputRecord, Receipt, RowLedger
from schemas.sft import BLEND, FLOW, PUBLISHED, SPLITS, PackSftConfig
from tasks.run.publish import Publication, json_document

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
    """What one data set has in one split.

    Attributes:
        dataset: its name; `weight` its weight in the blend; `pack_hash` names its folder.
        split: `train`, `valid` or `test`.
        plan: the plan's receipt; `shards` the write receipts in shard order.
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
        """The files of each shard, by its path relative to the output directory, in shard order."""
        found: dict[str, list[FileRecord]] = {}
        for receipt in self.shards:
            for record in receipt.files:
                # stages/{hash}/{shard}, and below that the arrays of a memmap folder.
                found.setdefault("/".join(PurePosixPath(record.path).parts[:3]), []).append(record)
        return found


@dataclass
class View:
    """The files of a run folder.

    Attributes:
        links: published path to the stage file it is a second name of.
        symlinks: published path to relative target.
        documents: published path to the bytes of a small file.
    """

    links: dict[str, FileRecord] = field(default_factory=dict)
    symlinks: dict[str, str] = field(default_factory=dict)
    documents: dict[str, bytes] = field(default_factory=dict)


def published_view(packed: Sequence[PackedSplit], rejects: dict[str, FileRecord]) -> View:
    """Names for every shard and reject file, blend.json and the pack metadata.

    Args:
        packed: every data set and split with at least one bin, splits and data sets in configuration order.
        rejects: published name (below `rejects/`) to reject file.
    """
    view = View()
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
    view.links.update({f"rejects/{name}": record for name, record in rejects.items()})
    view.documents[BLEND] = json_document(blend)
    for split, entries in metadata.items():
        view.documents[f"pack_metadata/{split}.json"] = json_document(entries)
    return view


@dataclass(frozen=True)
class PackedRun:
    """A validated run.

    Attributes:
        run_hash: the run's name.
        packed: every data set and split with at least one bin.
        rejects: published name to reject file.
        ledger: of the whole run.
        stages: what each stage was, for lineage.
    """

    config: PackSftConfig
    run_hash: str
    packed: tuple[PackedSplit, ...]
    rejects: dict[str, FileRecord]
    ledger: RowLedger
    stages: dict[str, str]
    inputs: tuple[InputRecord, ...]
    seen: dict[str, list[int]]


def publication(run: PackedRun) -> Publication:
    """The run as it is to be published."""
    view = published_view(run.packed, run.rejects)
    return Publication(
        flow=FLOW,
        published=PUBLISHED,
        output_dir=run.config.output_dir,
        run_hash=run.run_hash,
        links=view.links,
        symlinks=view.symlinks,
        documents=view.documents,
        ledger=run.ledger,
        statistics=run_statistics(run.packed),
        stages=run.stages,
        config=run.config.model_dump_json(indent=2),
        inputs=run.inputs,
        seen=run.seen,
    )


def run_statistics(packed: Sequence[PackedSplit]) -> dict[str, Any]:
    """Totals of the run, and what each data set has in each split."""
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
