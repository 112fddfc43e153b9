"""Validate a pack-sft run beyond its shards: blend paths lead to shards, and totals agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from schemas.errors import IntegrityError
from schemas.run import Receipt, RunManifest
from schemas.sft import BLEND, PackSftConfig
from schemas.verdict import Fault, Verdict
from tasks.run.contract import Job, absolute_root
from tasks.run.find import Found, content_of
from tasks.run.layout import MANIFEST
from tasks.sft.identity import DOMAIN
from tasks.sft.packed import PackedSplit
from tasks.sft.shards.find import shard_format, shard_of
from tasks.sft.shards.validate import validate_shard, validate_shards
from tasks.sft.shards.writers import SUFFIXES
from tasks.storage.reading import parse_json

_TOTALS = ("bins", "sequences", "tokens", "trained_tokens")


@dataclass(frozen=True, kw_only=True)
class ValidateJob(Job):
    """A shard to validate before it is published: a path in the output directory, and the pack size it must have."""

    task: ClassVar[str] = "validate"
    shard: str
    pack_size: int
    bytes: int

    @property
    def weight(self) -> int:
        """See `Job.weight`."""
        return self.bytes


def validate_jobs(config: PackSftConfig, packed: Sequence[PackedSplit]) -> list[ValidateJob]:
    """Return the jobs that validate what was packed, in order: their keys are the digests of the shards."""
    return [
        ValidateJob(
            output_dir=absolute_root(config),
            stage=DOMAIN.stage_key(
                "validate", shard=[record.sha256 for record in shard.records], pack_size=entry.size
            ),
            shard=shard.path,
            pack_size=entry.size,
            bytes=sum(record.bytes for record in shard.records),
            label=f"{entry.dataset} {entry.split}",
        )
        for entry in packed
        for shard in entry.shards
    ]


def check_written(job: ValidateJob) -> Receipt:
    """Check a shard before it is published, row by row.

    Raises:
        IntegrityError: names the first wrong row.
    """
    verdict = validate_shard(job.root / job.shard, check_digests=False)
    verdict.raise_if_bad()
    size = verdict.counts.get("pack_size", job.pack_size)
    if size != job.pack_size:
        raise IntegrityError(
            f"the shard says its pack size is {size}; expected {job.pack_size}",
            code="one_pack_size",
            where=str(job.root / job.shard),
        )
    return job.receipt((), statistics={name: verdict.counts[name] for name in _TOTALS})


def check_totals(packed: Sequence[PackedSplit], validated: Sequence[Receipt]) -> None:
    """Check that the shards as read back have exactly what was written.

    Args:
        validated: the receipts of `validate_jobs`.

    Raises:
        IntegrityError: names the total that differs.
    """
    for name in _TOTALS:
        written = sum(entry.statistics[name] for entry in packed)
        found = sum(receipt.statistics[name] for receipt in validated)
        if written != found:
            raise IntegrityError(
                f"the numbers of {name} differ: {written} written, {found} read back", code="totals"
            )


def validate_packed(run: Found[Any], manifest: RunManifest, full: bool) -> Verdict:
    """Validate the blend of a run and, if `full`, every row of its shards and the totals over them.

    Args:
        run: a local run, or one of Parquet shards behind a URI.
    """
    where = str(run.folder)
    faults = _check_blend(run)
    counts: dict[str, int] = {}
    if full:
        shards = dict.fromkeys(run.at(shard) for shard in map(shard_of, manifest.outputs) if shard)
        # What is missing is reported as such.
        there = [shard for shard in shards if isinstance(shard, str) or shard.exists()]
        verdict = validate_shards(there, "run", where, check_digests=False)
        counts = {name: value for name, value in verdict.counts.items() if name != "files"}
        faults += verdict.faults
        faults += _check_totals(str(run.at(MANIFEST)), manifest, counts)
    return Verdict(path=where, kind="run", counts=counts, faults=tuple(faults))


def _check_blend(run: Found[Any]) -> list[Fault]:
    """Check that every path in blend.json leads to a shard, and that every weight is above 0."""
    path = run.at(BLEND)
    published = {shard_of(record) for record in run.manifest.outputs}
    try:
        blend: dict[str, list[str]] = parse_json(content_of(path))
        named = [str(name) for entries in blend.values() for name in entries[1::2]]
        weights = [float(weight) for entries in blend.values() for weight in entries[0::2]]
    except (OSError, ValueError, AttributeError, TypeError) as error:
        return [Fault(where=str(path), rule="blend", detail=f"not a readable blend: {error}")]
    faults = [
        Fault(where=str(path), rule="blend", detail=f"{name} does not lead to a shard")
        for name in named
        if not any(
            _is_there(run.at(shard), shard in published) for shard in map(name.__add__, SUFFIXES.values())
        )
    ]
    if any(weight <= 0 for weight in weights):
        faults.append(Fault(where=str(path), rule="blend", detail="a weight is not greater than 0"))
    return faults


def _is_there(shard: Path | str, is_published: bool) -> bool:
    """Return whether there is a shard; behind a URI, whether the manifest names it."""
    return is_published if isinstance(shard, str) else shard_format(shard) is not None


def _check_totals(where: str, manifest: RunManifest, counts: dict[str, int]) -> list[Fault]:
    return [
        Fault(
            where=where,
            rule="totals",
            detail=f"{name}: {manifest.statistics.get(name)} in the manifest, {counts.get(name, 0)} in the shards",
        )
        for name in _TOTALS
        if counts.get(name, 0) != manifest.statistics.get(name)
    ]
