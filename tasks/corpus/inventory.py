"""Read from the files' footers what is in them: rows, row groups, and whether texts can be null.

Nothing is written before every file has been opened, and every unusable file is named. About 64 files are a job, so
that of 100,000 files a new one costs no more than those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from schemas.corpus import CorpusDatasetConfig, OnError, SampleCorpusConfig
from schemas.errors import InputError
from schemas.run import Receipt
from tasks.corpus.identity import DOMAIN, BucketSource
from tasks.corpus.sources.footer import look
from tasks.inputs.files import InputFile
from tasks.inputs.parts import grouped
from tasks.run.contract import Job, absolute_root
from tasks.run.identity import Identity
from tasks.storage.threads import map_threads

_NAMED = 20
# About so much of a file is read to know its row groups.
_FOOTER_BYTES = 64 << 10


class RowGroup(NamedTuple):
    """Count the rows and uncompressed bytes of one row group."""

    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SourceFile:
    """Describe one readable file of a bucket.

    Attributes:
        path: the file; `name`: its path relative to the bucket's folder.
        digest: of its content.
        bytes: its size.
        groups: its row groups, in file order.
        may_hold_nulls: the footer does not rule out null texts.
        keep_types: Arrow types of the columns to keep.
        seen: what the file looked like when it was hashed.
        may_be_invalid: texts may be not valid UTF-8: they are bytes, or were read and some are not.
    """

    path: str
    name: str
    digest: str
    bytes: int
    groups: tuple[RowGroup, ...]
    may_hold_nulls: bool
    keep_types: tuple[str, ...] = ()
    seen: tuple[int, ...] = ()
    may_be_invalid: bool = False

    @property
    def rows(self) -> int:
        return sum(group.rows for group in self.groups)

    @property
    def may_be_bad(self) -> bool:
        """Whether a row may have no text."""
        return self.may_hold_nulls or self.may_be_invalid


@dataclass(frozen=True)
class SkippedFile:
    """Name a file or folder that was left out, and say why."""

    name: str
    reason: str
    detail: str


@dataclass(frozen=True)
class Bucket:
    """Describe a bucket after the inventory.

    Attributes:
        inputs: the files and count that were requested.
        files: the readable files, sorted by name; a file's position decides ties.
        skipped: files that `on_error: skip` left out.
        stages: keys of the stages that looked into the files.
    """

    inputs: BucketSource
    files: tuple[SourceFile, ...]
    skipped: tuple[SkippedFile, ...]
    stages: tuple[str, ...]

    @property
    def label(self) -> str:
        return self.inputs.name

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, kw_only=True)
class InventoryJob(Job):
    """Look into some files of one bucket.

    Attributes:
        files: with what each looked like when it was hashed.
        thorough: read every page, not the footers alone.
        io_workers: how many files are looked into at once.
    """

    task: ClassVar[str] = "inventory"
    files: tuple[InputFile, ...]
    dataset: CorpusDatasetConfig
    thorough: bool
    io_workers: int

    @property
    def weight(self) -> int:
        """How many bytes are read."""
        return sum(file.bytes if self.thorough else _FOOTER_BYTES for file in self.files)


# Runs jobs; returns their receipts in the same order.
Look = Callable[[Sequence[InventoryJob]], Sequence[Receipt]]


def look_here(jobs: Sequence[InventoryJob]) -> list[Receipt]:
    """Run jobs one after the other, without caching."""
    return [look_into(job) for job in jobs]


def take_inventory(
    config: SampleCorpusConfig, identity: Identity[BucketSource], look: Look = look_here
) -> tuple[Bucket, ...]:
    """Read the footer of every file.

    Args:
        look: runs the jobs that do.

    Raises:
        InputError: `bad_files`: files cannot be used and `on_error` is not `skip`; the message names all of them.
    """
    jobs = [inventory_jobs(config, identity, entry) for entry in identity.sources]
    receipts = iter(look([job for some in jobs for job in some]))
    buckets = tuple(
        _bucket(identity, entry, [next(receipts) for _ in some])
        for entry, some in zip(identity.sources, jobs, strict=True)
    )
    if config.on_error is OnError.FAIL:
        _refuse(
            f"{bucket.label}/{skipped.name}: {skipped.detail}"
            for bucket in buckets
            for skipped in bucket.skipped
        )
    return buckets


def inventory_jobs(
    config: SampleCorpusConfig, identity: Identity[BucketSource], entry: BucketSource
) -> list[InventoryJob]:
    """Return the jobs that look into the files of one bucket."""
    # When bad files may be left out, every page is read now: a selection must not change half-way.
    thorough = config.on_error is OnError.SKIP
    dataset = entry.dataset
    pairs = zip(entry.files, entry.digests, strict=True)
    # A footer takes about as long whatever the size of its file.
    parts = grouped((file.name, file.bytes if thorough else 0, [(file, digest)]) for file, digest in pairs)
    return [
        InventoryJob(
            output_dir=absolute_root(config),
            stage=DOMAIN.stage_key(
                "inventory",
                columns=[dataset.text, list(dataset.keep_columns), sorted(dataset.where)],
                thorough=thorough,
                files=[[file.name, digest] for file, digest in part],
            ),
            files=tuple(file for file, _ in part),
            dataset=dataset,
            thorough=thorough,
            io_workers=config.io_workers,
            label=entry.name,
            seen=identity.seen_of(file.path for file, _ in part),
        )
        for part in parts
    ]


def look_into(job: InventoryJob) -> Receipt:
    """Look into the files of a job; its statistics say what is in each, or what is wrong with it.

    Raises:
        InputError: `unreadable`: the system refuses to read a file.
    """
    workers = min(job.io_workers, len(job.files))
    found = map_threads(lambda file: look(file.path, job.dataset, job.thorough), job.files, workers)
    return job.receipt([], statistics={"files": found})


def _bucket(identity: Identity[BucketSource], entry: BucketSource, receipts: Sequence[Receipt]) -> Bucket:
    found = (one for receipt in receipts for one in receipt.statistics["files"])
    looked = list(
        _of_one_type(
            entry,
            [
                _described(file, digest, tuple(identity.seen[str(file.path)]), one)
                for file, digest, one in zip(entry.files, entry.digests, found, strict=True)
            ],
        )
    )
    skipped = [one for one in looked if isinstance(one, SkippedFile)]
    if entry.missing:
        skipped.append(SkippedFile("", "missing_bucket", entry.missing))
    files = tuple(one for one in looked if isinstance(one, SourceFile))
    return Bucket(entry, files, tuple(skipped), tuple(receipt.stage for receipt in receipts))


def _described(
    file: InputFile, digest: str, seen: tuple[int, ...], found: dict[str, Any]
) -> SourceFile | SkippedFile:
    if "reason" in found:
        return SkippedFile(file.name, found["reason"], found["detail"])
    return SourceFile(
        path=str(file.path),
        name=file.name,
        digest=digest,
        bytes=file.bytes,
        groups=tuple(RowGroup(*group) for group in found["groups"]),
        may_hold_nulls=found["may_hold_nulls"],
        keep_types=tuple(found["keep_types"]),
        seen=seen,
        may_be_invalid=found["may_be_invalid"],
    )


def _of_one_type(
    entry: BucketSource, looked: list[SourceFile | SkippedFile]
) -> Iterable[SourceFile | SkippedFile]:
    """Skip files whose kept columns differ in type from the first file's: a Parquet file cannot hold both types."""
    first = next((found for found in looked if isinstance(found, SourceFile)), None)
    for found in looked:
        if isinstance(found, SourceFile) and first is not None and found.keep_types != first.keep_types:
            columns = ", ".join(entry.dataset.keep_columns)
            detail = f"keep_columns ({columns}) are {found.keep_types}, in {first.name} they are {first.keep_types}"
            yield SkippedFile(found.name, "bad_column", detail)
        else:
            yield found


def _refuse(faults: Iterable[str]) -> None:
    listed = list(faults)
    if listed:
        more = f"; and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
        raise InputError(
            f"{len(listed)} files cannot be sampled: {'; '.join(listed[:_NAMED])}{more}. Fix or remove them, or set "
            "on_error: skip",
            code="bad_files",
            where="datasets",
        )
