"""Identify a run before it starts: its inputs by content, and the resulting hash. Cheap to import and to compute.

A cached re-run needs no more than this: no numpy, no Arrow, no Prefect. Inputs that are not remembered are read by
jobs like any other, unless they are few, so that large ones are read by all workers and an interrupted run reads on.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from schemas.errors import ConfigError
from schemas.run import InputRecord, Receipt
from tasks.inputs.files import InputFile
from tasks.inputs.fingerprint import Fingerprints, identity_of, is_settled
from tasks.inputs.members import Member
from tasks.inputs.parts import LARGEST_PIECE, Cut
from tasks.inputs.survey import (
    BLOCK_BYTES,
    Block,
    BlockContent,
    FileContent,
    Survey,
    are_few,
    digest_name,
    read_block,
    survey_here,
)
from tasks.run.contract import Domain, Job
from tasks.run.layout import FINGERPRINTS, LATEST, RUNS, STAGES


@dataclass(frozen=True)
class Source:
    """A named group of input files.

    Attributes:
        name: what the manifest calls the source.
        where: the configuration field that names it, for errors.
        files: in the order that breaks ties.
        digests: of the content of each, 64 hex digits, see `tasks.inputs.survey`; empty until they are fingerprinted.
        cuts: the pieces of each.
    """

    name: str
    where: str
    files: tuple[InputFile, ...]
    digests: tuple[str, ...] = ()
    cuts: tuple[tuple[Cut, ...], ...] = ()

    def named_digests(self) -> list[list[str]]:
        """Return the name and digest of each file, in the form that is hashed."""
        return [[file.name, digest] for file, digest in zip(self.files, self.digests, strict=True)]


S = TypeVar("S", bound=Source)

# Endings of files that may be one piece whatever their size, why, and what else can be done; the first one counts.
_UNCUT = (
    ((".csv", ".csv.zst", ".csv.gz", ".csv.bz2"), "CSV cannot be cut", ", or as Parquet"),
    (".zst", "it is one zstd frame, or has one above 256 MiB", ", uncompressed, or compressed by pzstd"),
    (".gz", "it is one gzip member, or has one above 256 MiB", ", uncompressed, or compressed by bgzip"),
    (".bz2", "bzip2 cannot be cut", ", or uncompressed"),
)


@dataclass(frozen=True, kw_only=True)
class Identity(Generic[S]):
    """The identity of a run, known before it starts.

    Attributes:
        run_hash: 16 hex digits; equal for equal settings over equal bytes.
        sources: all inputs, fingerprinted.
        seen: file status of each input at the time it was hashed, by path.
    """

    run_hash: str
    sources: tuple[S, ...]
    seen: dict[str, list[int]]

    def records(self) -> tuple[InputRecord, ...]:
        """Return the fingerprint of every input file, as listed in `inputs.json`."""
        return tuple(
            InputRecord(
                source=source.name,
                path=file.name,
                bytes=file.bytes,
                digest=f"{digest_name(file.bytes)}:{digest}",
            )
            for source in self.sources
            for file, digest in zip(source.files, source.digests, strict=True)
        )

    def warnings(self) -> tuple[str, ...]:
        """Say which files are so large that others wait for the one task that reads them."""
        return tuple(
            f"{file.name} of {source.name} has {file.bytes / 2**30:,.1f} GiB and is read by a single task, because "
            f"{what}; give it as several files{other}"
            for source in self.sources
            for file, cuts in zip(source.files, source.cuts or ((),) * len(source.files), strict=True)
            if file.bytes > LARGEST_PIECE and not cuts
            for what, other in _why_uncut(file.path.name)
        )

    def seen_of(self, paths: Iterable[str | Path]) -> dict[str, list[int]]:
        """Return the file status of these inputs at the time they were hashed."""
        return {str(path): self.seen[str(path)] for path in paths}


def _why_uncut(name: str) -> list[tuple[str, str]]:
    return [(what, other) for ending, what, other in _UNCUT if name.endswith(ending)][:1]


def fingerprint(
    sources: Sequence[S],
    output_dir: str,
    published: Iterable[str] = (),
    survey: Survey = survey_here,
) -> tuple[tuple[S, ...], dict[str, list[int]]]:
    """Digest every file of `sources`, reading only files that are not remembered.

    Args:
        sources: without digests.
        output_dir: where digests are remembered, once the run layout exists.
        published: top-level names in the output directory that this flow adds to those of every run.
        survey: reads what is not remembered.

    Returns:
        The sources with digests and cuts, and the status of each file.

    Raises:
        ConfigError: `input_is_output`, an input was made by runs in this directory.
        InputError: a file cannot be read.
    """
    for source in sources:
        refuse_own_output(source, Path(output_dir), published)
    memo = Fingerprints(Path(output_dir, STAGES, FINGERPRINTS))
    contents = iter(memo.contents((file.path for source in sources for file in source.files), survey))
    if Path(output_dir, STAGES).is_dir():
        memo.save()
    seen = memo.identities()
    return tuple(_with(source, [next(contents) for _ in source.files], seen) for source in sources), seen


def _with(source: S, contents: Sequence[FileContent], seen: Mapping[str, Sequence[int]]) -> S:
    # A file may have grown since it was listed: its size is that of what was hashed.
    files = tuple(dataclasses.replace(file, bytes=seen[str(file.path)][1]) for file in source.files)
    digests = tuple(content.digest for content in contents)
    return dataclasses.replace(
        source, files=files, digests=digests, cuts=tuple(content.cuts for content in contents)
    )


def refuse_own_output(source: Source, output_dir: Path, published: Iterable[str] = ()) -> None:
    """Refuse inputs that runs made in `output_dir`, through whatever link they are reached.

    If the input folder contains the output folder, the next run would read this run's shards or rejects as input.

    Raises:
        ConfigError: `input_is_output`.
    """
    names = (RUNS, STAGES, LATEST, *published)
    roots = (output_dir.absolute(), output_dir.resolve())
    made = {str(root / name) for root in roots for name in names}
    below = tuple(f"{path}/" for path in made)
    # Text, and each folder only once: as paths, those of 100,000 files take half a minute.
    folders: dict[str, str] = {}
    for file in source.files:
        path = str(file.path.absolute())
        folder, _, name = path.rpartition("/")
        if folder not in folders:
            folders[folder] = str(Path(folder).resolve())
        place = f"{folders[folder]}/{name}"
        if os.path.islink(place):  # noqa: PTH114 - there may be many files
            place = str(Path(place).resolve())
        if not made.isdisjoint((path, place)) or path.startswith(below) or place.startswith(below):
            raise ConfigError(
                f"the input {file.name!r} is in output_dir, among the files that runs make; move output_dir "
                "out of the input folder, or select the input files with a glob",
                code="input_is_output",
                where=source.where,
            )


# Of one job. The blocks of a large file are jobs of their own.
_MOST_FILES = 1000


@dataclass(frozen=True, kw_only=True)
class FingerprintJob(Job):
    """Read some blocks of the inputs.

    Its stage key covers what the files looked like, not their content, which is not known yet.
    """

    task: ClassVar[str] = "fingerprint"
    blocks: tuple[Block, ...]

    @property
    def weight(self) -> int:
        """How many bytes are read."""
        return sum(block.bytes for block in self.blocks)


def read_inputs(job: FingerprintJob) -> Receipt:
    """Read the blocks of a job; its statistics say what is in them.

    Raises:
        InputError: a file cannot be read.
    """
    read = [read_block(block) for block in job.blocks]
    listed = [
        [one.digest, [*one.lines], [[*group] for group in one.groups], [[*member] for member in one.members]]
        for one in read
    ]
    return job.receipt([], statistics={"blocks": listed})


def mapped_survey(
    domain: Domain, output_dir: Path, each: Callable[[Sequence[FingerprintJob]], Sequence[Receipt]]
) -> Survey:
    """Return a survey that reads few blocks at once, and many by jobs.

    Args:
        each: runs the jobs; returns their receipts in the same order.
    """

    def survey(blocks: Sequence[Block]) -> list[BlockContent]:
        if are_few(blocks):
            return survey_here(blocks)
        jobs = [_fingerprint_job(domain, output_dir, some) for some in _batches(blocks)]
        return [content for receipt in each(jobs) for content in _contents(receipt)]

    return survey


def _batches(blocks: Sequence[Block]) -> Iterator[tuple[Block, ...]]:
    batch: list[Block] = []
    held = 0
    for block in blocks:
        if batch and (held + block.bytes > BLOCK_BYTES or len(batch) == _MOST_FILES):
            yield tuple(batch)
            batch, held = [], 0
        batch.append(block)
        held += block.bytes
    if batch:
        yield tuple(batch)


def _fingerprint_job(domain: Domain, output_dir: Path, blocks: tuple[Block, ...]) -> FingerprintJob:
    seen = {block.path: identity_of(block.path) for block in blocks}
    ranges = [[block.path, block.start, block.stop, *seen[block.path]] for block in blocks]
    # A file that may change without its times changing is read by every run anew.
    now = [] if all(map(is_settled, seen.values())) else [time.time_ns()]
    return FingerprintJob(
        output_dir=str(output_dir.absolute()),
        stage=domain.stage_key("fingerprint", ranges=ranges, now=now),
        blocks=blocks,
        seen=seen,
    )


def _contents(receipt: Receipt) -> Iterator[BlockContent]:
    for digest, lines, groups, members in receipt.statistics["blocks"]:
        yield BlockContent(
            digest,
            tuple(lines),
            tuple((rows, size) for rows, size in groups),
            tuple(Member(*member) for member in members),
        )
