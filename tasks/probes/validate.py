"""Validate probe rows: each record alone, probes and splits over all records, and all of them against the source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from schemas.errors import GristmillError, IntegrityError
from schemas.probes import SHARD_SUFFIX, SPLITS, TRAIN, BuildProbeRowsConfig, ProbeSplit
from schemas.run import FileRecord, Receipt, RunManifest
from schemas.verdict import WARNING, Fault, Verdict
from tasks.probes.identity import DOMAIN, identify
from tasks.probes.proof import compare
from tasks.probes.publish import written_shards
from tasks.probes.records.decode import ProbeRecord, read_record
from tasks.probes.records.writer import open_records
from tasks.probes.rows.addresses import probe_hash, train_end
from tasks.run.contract import Job, absolute_root
from tasks.run.layout import CONFIG
from tasks.storage.reading import parse_json, read_bytes

_SEQUENTIAL = "readahead_buffer_size:4M"
_READ_RECORDS = 64


@dataclass(frozen=True, kw_only=True)
class ValidateJob(Job):
    """The shards that one job wrote, to validate before they are published; `records` is how many each has."""

    task: ClassVar[str] = "validate"
    files: tuple[FileRecord, ...]
    records: tuple[int, ...]


def validate_jobs(config: BuildProbeRowsConfig, gathered: Sequence[Receipt]) -> list[ValidateJob]:
    """Return the jobs that validate what was written, in order: their keys are the digests of the shards."""
    jobs = []
    for receipt in gathered:
        records = tuple(int(counts["records"]) for counts, _ in written_shards([receipt]))
        digests = [record.sha256 for record in receipt.files]
        stage = DOMAIN.stage_key("validate", files=digests, records=list(records))
        jobs.append(
            ValidateJob(output_dir=absolute_root(config), stage=stage, files=receipt.files, records=records)
        )
    return jobs


def check_written(job: ValidateJob) -> Receipt:
    """Check shards before they are published: their counts, and the first and last record of each.

    `validate` reads all records on demand, which takes longer than writing them.

    Raises:
        IntegrityError: a shard does not match its receipt.
    """
    for records, record in zip(job.records, job.files, strict=True):
        path = job.root / record.path
        with open_records(path) as file:
            found = file.num_records()
            if found != records:
                raise IntegrityError(
                    f"{records} records were written but the file contains {found}",
                    code="totals",
                    where=str(path),
                )
            for row in sorted({0, found - 1}):
                for rule, detail in read_record(file.read([row])[0])[1]:
                    raise IntegrityError(f"{rule}: {detail}", code="invalid", where=f"{path}:{row}")
    return job.receipt((), statistics={"records": sum(job.records)})


def check_totals(gathered: Sequence[Receipt], rows_used: int) -> None:
    """Check that the shards together have the measurements that the ledger says were used.

    Raises:
        IntegrityError: they have not.
    """
    measurements = sum(counts["measurements"] for counts, _ in written_shards(gathered))
    if measurements != rows_used:
        raise IntegrityError(
            f"{rows_used} measurements were used but the shards contain {measurements}", code="totals"
        )


def validate_probes(folder: Path, manifest: RunManifest, full: bool) -> Verdict:
    """Validate a run of build-probe-rows.

    Args:
        full: read every record, and compare all measurements with the source; otherwise only count records.

    Returns:
        A verdict with the counts `shards`, `records` and, if full, `probes` and `measurements`, and a warning if the
        source is gone or has changed, so that the contents could not be proved.
    """
    shards = [folder / r.path for r in manifest.outputs if r.path.endswith(SHARD_SUFFIX)]
    shards = [shard for shard in shards if shard.is_file()]
    config = _config(folder)
    verdict = _Checker(config).check(shards, "run", str(folder), full)
    counts, faults = dict(verdict.counts), list(verdict.faults)
    for name in counts.keys() & {"records", "probes", "measurements", "shards"}:
        if counts[name] != manifest.statistics.get(name):
            detail = f"{name}: the manifest says {manifest.statistics.get(name)}, the shards contain {counts[name]}"
            faults.append(Fault(where=str(folder), rule="totals", detail=detail))
    if full and counts["measurements"] != manifest.ledger.rows_used:
        detail = (
            f"the ledger says {manifest.ledger.rows_used} rows are used, the shards contain "
            f"{counts['measurements']} measurements"
        )
        faults.append(Fault(where=str(folder), rule="totals", detail=detail))
    if full and not faults:
        faults += _prove(folder, manifest, config, shards)
    return Verdict(path=str(folder), kind="run", counts=counts, faults=tuple(faults))


def validate_records(shards: Sequence[Path], kind: str, where: str) -> Verdict:
    """Validate loose `.arrayrecord` files of probe records, as far as is possible without their run."""
    return _Checker(None).check(shards, kind, where, full=True)


def _config(folder: Path) -> BuildProbeRowsConfig | None:
    try:
        return BuildProbeRowsConfig.parse(parse_json(read_bytes(folder / CONFIG)))
    except (GristmillError, OSError, ValueError):
        return None


class _Checker:
    """Check records in order, and remember what spans several of them."""

    def __init__(self, config: BuildProbeRowsConfig | None) -> None:
        self._config = config
        self._faults: dict[tuple[str, str], Fault] = {}
        self._split_of: dict[str, str] = {}

    def check(self, shards: Sequence[Path], kind: str, where: str, full: bool) -> Verdict:
        """Count the records of all shards and, if `full`, check each of them."""
        counts = {"shards": len(shards), "records": 0}
        if full:
            counts |= {"probes": 0, "measurements": 0}
        for shard in shards:
            try:
                with open_records(shard) as file:
                    counts["records"] += int(file.num_records())
                if full:
                    counts["measurements"] += self._check_shard(shard)
            except IntegrityError as error:
                self._fault(shard, "", "readable", error.message)
        if full:
            counts["probes"] = len(self._split_of)
        return Verdict(path=where, kind=kind, counts=counts, faults=tuple(self._faults.values()))

    def _fault(self, shard: Path, row: int | str, rule: str, detail: str) -> None:
        known = self._faults.get((str(shard), rule))
        if known is not None:
            self._faults[str(shard), rule] = known.model_copy(update={"count": known.count + 1})
        else:
            place = f"{shard}:{row}" if row != "" else str(shard)
            self._faults[str(shard), rule] = Fault(where=place, rule=rule, detail=detail)

    def _check_shard(self, shard: Path) -> int:
        split = next((name for name in SPLITS if shard.name.startswith(name)), shard.parent.name)
        measurements = 0
        before: ProbeRecord | None = None
        row = -1
        for row, data in enumerate(read_all(shard)):
            record, broken = read_record(data)
            for rule, detail in broken:
                self._fault(shard, row, rule, detail)
            if record is None:
                before = None
                continue
            measurements += record.measurements.num_rows
            self._check_place(shard, row, split, before, record)
            before = record
        if before is not None and before.part + 1 != before.n_parts:
            self._fault(
                shard, row, "parts", f"part {before.part} of {before.n_parts} is the last of its shard"
            )
        return measurements

    def _check_place(
        self, shard: Path, row: int, split: str, before: ProbeRecord | None, record: ProbeRecord
    ) -> None:
        inside = before is not None and before.part + 1 < before.n_parts
        follows = (
            before is not None
            and record.src_addr == before.src_addr
            and (record.part, record.n_parts) == (before.part + 1, before.n_parts)
        )
        if inside != follows or (not inside and record.part):
            self._fault(shard, row, "parts", "the parts of a probe do not follow each other")
        elif before is not None and follows and len(record.times) and record.times[0] < before.times[-1]:
            self._fault(shard, row, "order", "a part starts before the one before it ends")
        elif not follows:
            known = self._split_of.get(record.src_addr)
            if known is not None:
                rule = "repeated_probe" if known == split else "split"
                self._fault(shard, row, rule, f"{record.src_addr} appears again in {known}")
            self._split_of[record.src_addr] = split
        config = self._config
        if config is None:
            return
        if record.blob_bytes > config.max_record_bytes:
            self._fault(
                shard,
                row,
                "size",
                f"the measurements have {record.blob_bytes} bytes; max_record_bytes is {config.max_record_bytes}",
            )
        if config.split is ProbeSplit.HASH:
            is_train = probe_hash(record.src_addr.encode(), config.seed) < train_end(config.train_ratio)
            if is_train != (split == TRAIN):
                self._fault(shard, row, "split", f"{record.src_addr} does not belong in {split}")


def read_all(shard: Path) -> Iterator[bytes]:
    """Yield the records of a file in order.

    Raises:
        IntegrityError: `bad_arrayrecord`: the file cannot be read to its end.
    """
    with open_records(shard, _SEQUENTIAL) as file:
        total = int(file.num_records())
        try:
            for first in range(0, total, _READ_RECORDS):
                yield from file.read(first, min(first + _READ_RECORDS, total))
        except (RuntimeError, ValueError, IndexError) as error:
            raise IntegrityError(
                f"the file cannot be read to its end: {error}", code="bad_arrayrecord", where=str(shard)
            ) from error


def _prove(
    folder: Path, manifest: RunManifest, config: BuildProbeRowsConfig | None, shards: Sequence[Path]
) -> list[Fault]:
    try:
        if config is None:
            raise ValueError("config.json is missing or damaged")
        identity = identify(config)
    except (GristmillError, ValueError) as error:
        return [_unproved(folder, f"the source cannot be read: {error}")]
    if identity.run_hash != manifest.run_hash:
        return [_unproved(folder, "the source or its path has changed since the run")]
    rejects = [folder / r.path for r in manifest.outputs if r.path.startswith("rejects/")]
    try:
        differences = compare(config, identity, rejects, _measurements(shards))
    except GristmillError as error:
        return [_unproved(folder, error.message)]
    return [Fault(where=str(folder), rule="contents", detail=detail) for detail in differences]


def _measurements(shards: Sequence[Path]) -> Iterator[tuple[str, pa.RecordBatch]]:
    for shard in shards:
        for data in read_all(shard):
            record, _ = read_record(data)
            if record is not None:
                yield record.src_addr, record.measurements


def _unproved(folder: Path, detail: str) -> Fault:
    return Fault(
        where=str(folder), rule="proof", detail=f"the contents could not be proved: {detail}", level=WARNING
    )
