"""Validate probe rows: every record by itself, probes and splits over all records, and the source against both."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from schemas.errors import GristmillError, IntegrityError
from schemas.probes import SHARD_SUFFIX, SPLITS, TRAIN, BuildProbeRowsConfig, ProbeSplit
from schemas.run import Receipt, RunManifest
from schemas.verdict import WARNING, Fault, Verdict
from tasks.probes.identity import identify
from tasks.probes.proof import compare
from tasks.probes.publish import written_shards
from tasks.probes.records.decode import ProbeRecord, read_record
from tasks.probes.records.writer import open_records
from tasks.probes.rows.addresses import probe_hash, train_end
from tasks.storage.reading import read_bytes

_SEQUENTIAL = "readahead_buffer_size:4M"
_READ_RECORDS = 64


@dataclass(frozen=True)
class ValidateJob:
    """Both passes done, nothing published; `rows_used` is the ledger's."""

    output_dir: str
    gathered: tuple[Receipt, ...]
    rows_used: int


def check_written(job: ValidateJob) -> int:
    """Check shards before they are published: counts, and the first and last record of each; returns the records.

    All records are read by `validate`, on demand: that takes longer than to make them.

    Raises:
        IntegrityError: a shard is not as its receipt says, or a total is not the ledger's.
    """
    measurements = records = 0
    for counts, record in written_shards(job.gathered):
        path = Path(job.output_dir) / record.path
        with open_records(path) as file:
            found = file.num_records()
            if found != counts["records"]:
                raise IntegrityError(
                    f"{counts['records']} records were written and {found} are there",
                    code="totals",
                    where=str(path),
                )
            for row in sorted({0, found - 1}):
                for rule, detail in read_record(file.read([row])[0])[1]:
                    raise IntegrityError(f"{rule}: {detail}", code="invalid", where=f"{path}:{row}")
        measurements += counts["measurements"]
        records += found
    if measurements != job.rows_used:
        raise IntegrityError(
            f"{job.rows_used} measurements were used and {measurements} are in the shards", code="totals"
        )
    return records


def validate_probes(folder: Path, manifest: RunManifest, full: bool) -> Verdict:
    """Validate a run of build-probe-rows.

    Args:
        full: read every record, and compare all measurements with the source; otherwise only count records.

    Returns:
        Counts `shards`, `records` and, if full, `probes` and `measurements`; where the source is gone or has
        changed, a warning that nothing is proved.
    """
    shards = [folder / r.path for r in manifest.outputs if r.path.endswith(SHARD_SUFFIX)]
    shards = [shard for shard in shards if shard.is_file()]
    config = _config(folder)
    verdict = _Checker(config).check(shards, "run", str(folder), full)
    counts, faults = dict(verdict.counts), list(verdict.faults)
    for name in counts.keys() & {"records", "probes", "measurements", "shards"}:
        if counts[name] != manifest.statistics.get(name):
            detail = f"{name}: manifest {manifest.statistics.get(name)}, in the shards {counts[name]}"
            faults.append(Fault(where=str(folder), rule="totals", detail=detail))
    if full and counts["measurements"] != manifest.ledger.rows_used:
        detail = f"the ledger used {manifest.ledger.rows_used} rows, the shards hold {counts['measurements']}"
        faults.append(Fault(where=str(folder), rule="totals", detail=detail))
    if full and not faults:
        faults += _prove(folder, manifest, config, shards)
    return Verdict(path=str(folder), kind="run", counts=counts, faults=tuple(faults))


def validate_records(shards: Sequence[Path], kind: str, where: str) -> Verdict:
    """Validate loose `.arrayrecord` files of probe records, as far as they tell."""
    return _Checker(None).check(shards, kind, where, full=True)


def _config(folder: Path) -> BuildProbeRowsConfig | None:
    try:
        return BuildProbeRowsConfig.parse(json.loads(read_bytes(folder / "config.json")))
    except (GristmillError, OSError, ValueError):
        return None


class _Checker:
    """Checks records in order; keeps what spans several of them."""

    def __init__(self, config: BuildProbeRowsConfig | None) -> None:
        self._config = config
        self._faults: dict[tuple[str, str], Fault] = {}
        self._split_of: dict[str, str] = {}

    def check(self, shards: Sequence[Path], kind: str, where: str, full: bool) -> Verdict:
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
                self._fault(shard, row, rule, f"{record.src_addr} is also elsewhere in {known}")
            self._split_of[record.src_addr] = split
        config = self._config
        if config is None:
            return
        if record.blob_bytes > config.max_record_bytes:
            self._fault(
                shard,
                row,
                "size",
                f"measurements of {record.blob_bytes} bytes, at most {config.max_record_bytes}",
            )
        if config.split is ProbeSplit.HASH:
            is_train = probe_hash(record.src_addr.encode(), config.seed) < train_end(config.train_ratio)
            if is_train != (split == TRAIN):
                self._fault(shard, row, "split", f"{record.src_addr} does not belong into {split}")


def read_all(shard: Path) -> Iterator[bytes]:
    """The records of a file in order.

    Raises:
        IntegrityError: it cannot be read to its end.
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
        return [_unproved(folder, "the source or its path changed since the run")]
    rejects = [folder / r.path for r in manifest.outputs if r.path.startswith("rejects/")]
    try:
        differences = compare(identity, rejects, _measurements(shards), config.deduplicate)
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
        where=str(folder), rule="proof", detail=f"the contents were not proved: {detail}", level=WARNING
    )
