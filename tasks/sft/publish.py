"""Turn stage files into a published run: named links, blend.json, pack metadata, manifest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from schemas.run import FileRecord
from schemas.sft import BLEND, PROVENANCE, SPLITS
from tasks.run.publish import Contents, json_document, part_stages
from tasks.run.rejects import numbered, reject_links
from tasks.sft.packed import METADATA_KEYS, PackedRun, PackedSplit, warnings


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
        shown = entry.shown("bins")
        shares: list[str] = []
        names: list[str] = []
        for shard in entry.shards:
            path = f"{entry.folder}/{shard.name}"
            view.links.update({path + _within(record): record for record in shard.records})
            names += [shard.name] * shard.times
            stem = str(PurePosixPath(path).with_suffix(""))
            shares += [f"{entry.weight * shard.times * shard.counts['bins'] / shown:.12g}", stem]
            beside = f"{PROVENANCE}/{entry.folder.removeprefix('datasets/')}"
            view.links[f"{beside}/{PurePosixPath(stem).name}.parquet"] = shard.provenance
        blend.setdefault(entry.split, []).extend(shares)
        first = positions.get(entry.split, 0)
        positions[entry.split] = first + len(names)
        for position, name in enumerate(names, start=first):
            link = f"{SPLITS}/{entry.split}/{position:06d}__{entry.dataset}__{name}"
            view.symlinks[link] = f"../../{entry.folder}/{name}"
        metadata.setdefault(entry.split, []).append({k: entry.statistics[k] for k in METADATA_KEYS})
    view.documents[BLEND] = json_document(blend)
    for split, entries in metadata.items():
        view.documents[f"pack_metadata/{split}.json"] = json_document(entries)
    return view


def _within(record: FileRecord) -> str:
    """Return the path of a file below its shard: nothing, or `/{array}` of a memmap folder."""
    return "".join(f"/{part}" for part in PurePosixPath(record.path).parts[3:])


def contents(run: PackedRun) -> Contents:
    """Return everything the published run contains."""
    view = _view(run.packed)
    return Contents(
        links={**view.links, **_reject_links(run)},
        symlinks=view.symlinks,
        documents=view.documents,
        ledger=run.ledger,
        statistics=run.statistics,
        stages=_lineage(run),
        warnings=warnings(run),
    )


def _reject_links(run: PackedRun) -> dict[str, FileRecord]:
    named = [
        entry for name, receipts in run.spools.items() for entry in numbered(f"{name}-tokenize", receipts)
    ]
    named += [
        named
        for entry in run.made
        for named in numbered(f"{entry.dataset}-pack-{entry.split}", entry.receipts)
    ]
    return reject_links(named)


def _lineage(run: PackedRun) -> dict[str, str]:
    named = zip(run.config.datasets, run.screened, strict=True)
    stages = {f"screen/{dataset.name}": receipt.stage for dataset, receipt in named}
    for name, receipts in run.spools.items():
        stages |= part_stages("tokenize", receipts, name)
    for dataset, cut in zip(run.config.datasets, run.cuts, strict=True):
        stages[f"cut/{dataset.name}"] = cut.stage
    stages |= part_stages("repeats", run.repeats)
    for entry in run.made:
        stages[f"pack/{entry.dataset}/{entry.split}"] = entry.receipts[0].stage
        if entry.mixture.rest is not None:
            stages[f"rest/{entry.dataset}/{entry.split}"] = entry.mixture.rest.stage
    stages |= part_stages("validate", run.validated)
    return stages
