"""Turn a sample-corpus configuration into jobs, stage by stage, and compute the hashes that key each stage.

inventory -> screen (only where needed) -> select, one job for each bucket -> write, a shard of one bucket. A write
key covers the shard's own pieces, the cutoff and the writer's options, so a new count or file reruns only what it
changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from schemas.corpus import SampleCorpusConfig
from schemas.run import Receipt
from tasks.corpus.cut import ShardCut, SourceRows, cut_shards, shard_bytes_for
from tasks.corpus.identity import DOMAIN
from tasks.corpus.inventory import Bucket, SourceFile
from tasks.corpus.screen import ScreenJob, bitmap_name
from tasks.corpus.select import SELECTED, Eligibility, SelectJob, kept_rows
from tasks.corpus.selection.cutoff import KEEP_ALL, Cutoff, IdRange
from tasks.corpus.write import WriteJob
from tasks.inputs.parts import grouped
from tasks.run.contract import absolute_root
from tasks.run.layout import stage_folder
from tasks.storage.arrays import read_array


def screen_jobs(config: SampleCorpusConfig, buckets: Sequence[Bucket]) -> list[list[ScreenJob]]:
    """Return, for each bucket, jobs that screen the files whose texts must be read before selection."""
    return [_screen_bucket(config, bucket) for bucket in buckets]


def is_screened(config: SampleCorpusConfig, bucket: Bucket, file: SourceFile) -> bool:
    """Return whether rows of the file may be left out before selection."""
    return config.filters_length or bool(bucket.inputs.dataset.where) or file.may_be_bad


def _screen_bucket(config: SampleCorpusConfig, bucket: Bucket) -> list[ScreenJob]:
    parts = grouped(
        (file.name, file.bytes, [file]) for file in bucket.files if is_screened(config, bucket, file)
    )
    dataset = bucket.inputs.dataset
    bounds = {
        "min_characters": config.min_characters,
        "max_characters": config.max_characters,
        **dataset.hash_fields(["where"]),
    }
    return [
        ScreenJob(
            output_dir=absolute_root(config),
            stage=DOMAIN.stage_key(
                "screen", text=dataset.text, files=[[file.name, file.digest] for file in files], **bounds
            ),
            files=files,
            text=dataset.text,
            min_characters=config.min_characters,
            max_characters=config.max_characters,
            where=dataset.where,
            batch_rows=config.batch_rows,
            label=bucket.label,
            seen={file.path: file.seen for file in files},
        )
        for files in parts
    ]


def select_job(
    config: SampleCorpusConfig, bucket: Bucket, screens: Sequence[ScreenJob], screened: Sequence[Receipt]
) -> SelectJob:
    """Return the job that selects from one bucket.

    Args:
        screens, screened: the bucket's screen jobs and their receipts.
    """
    root = Path(absolute_root(config))
    bitmaps = {
        file.name: str(stage_folder(root, screen.stage) / bitmap_name(position))
        for screen in screens
        for position, file in enumerate(screen.files)
    }
    barred = sum(r.ledger.rows_in - r.ledger.rows_used for r in screened if r.ledger is not None)
    return SelectJob(
        output_dir=str(root),
        stage=DOMAIN.stage_key(
            "select",
            seed=config.random_seed,
            bucket=bucket.inputs.bucket,
            files=[[file.name, file.digest] for file in bucket.files],
            screens=[screen.stage for screen in screens],
            count=bucket.inputs.count,
        ),
        seed=config.random_seed,
        bucket=bucket.inputs.bucket,
        files=bucket.files,
        bitmaps=tuple(bitmaps.get(file.name, "") for file in bucket.files),
        count=bucket.inputs.count,
        eligible=bucket.rows - barred,
        workers=config.workers,
        label=bucket.label,
    )


@dataclass(frozen=True)
class Selection:
    """Hold a bucket with its cutoff and its shards."""

    bucket: Bucket
    job: SelectJob
    receipt: Receipt
    cutoff: Cutoff
    shards: tuple[ShardCut, ...]


def plan_shards(
    config: SampleCorpusConfig,
    buckets: Sequence[Bucket],
    selects: Sequence[SelectJob],
    receipts: Sequence[Receipt],
) -> list[Selection]:
    """Cut every bucket's selection into shards."""
    shard_bytes = shard_bytes_for(sum(g.bytes for b in buckets for f in b.files for g in f.groups))
    found = []
    for bucket, job, receipt in zip(buckets, selects, receipts, strict=True):
        cutoff = Cutoff(*receipt.statistics["cutoff"])
        shards = _cut_bucket(config, job, cutoff, shard_bytes)
        found.append(Selection(bucket, job, receipt, cutoff, tuple(shards)))
    return found


def _cut_bucket(
    config: SampleCorpusConfig, job: SelectJob, cutoff: Cutoff, shard_bytes: int
) -> list[ShardCut]:
    selected = read_array(stage_folder(Path(job.output_dir), job.stage) / SELECTED)
    eligible = Eligibility(dict(enumerate(job.bitmaps)))

    def kept(file: int, start: int, stop: int):  # type: ignore[no-untyped-def]
        name = job.files[file].name
        return kept_rows(job.seed, job.bucket, name, IdRange(file, start, stop), cutoff, eligible)

    return cut_shards(job.files, job.bitmaps, selected, config.max_rows, shard_bytes, kept)


def write_jobs(config: SampleCorpusConfig, selections: Sequence[Selection]) -> list[list[WriteJob]]:
    """Return, for each bucket, the jobs that write its shards."""
    return [
        [_write_job(config, selection, (shard,)) for shard in selection.shards] for selection in selections
    ]


def _write_job(config: SampleCorpusConfig, selection: Selection, shards: tuple[ShardCut, ...]) -> WriteJob:
    dataset = selection.bucket.inputs.dataset
    bucket = selection.bucket.inputs.bucket
    options = {
        **config.hash_fields(
            ["compression", "compression_level", "min_characters", "max_characters", "id_column"]
        ),
        **dataset.hash_fields(["where"]),
    }
    # If a bucket keeps all its rows, which rows those are depends neither on the seed nor on the files' names.
    keeps_all = selection.cutoff == KEEP_ALL
    rule = "all" if keeps_all else [config.random_seed, bucket, *selection.cutoff]
    # Document ids contain the names.
    is_named = not keeps_all or config.id_name is not None
    pieces = [[_piece_key(piece, is_named, not keeps_all) for piece in shard.pieces] for shard in shards]
    return WriteJob(
        output_dir=absolute_root(config),
        stage=DOMAIN.stage_key(
            "write",
            pieces=pieces,
            rule=rule,
            columns=[dataset.name, bucket, dataset.text, list(dataset.keep_columns)],
            options=options,
        ),
        shards=shards,
        seed=config.random_seed,
        bucket=bucket,
        dataset=dataset.name,
        text=dataset.text,
        keep_columns=dataset.keep_columns,
        id_column=config.id_name,
        batch_rows=config.batch_rows,
        cutoff=selection.cutoff,
        compression=config.compression,
        compression_level=config.compression_level,
        label=f"{dataset.name}/{bucket}",
        seen={piece.path: piece.seen for shard in shards for piece in shard.pieces},
    )


def _piece_key(piece: SourceRows, is_named: bool, is_ranked: bool) -> list[str | int]:
    rows = [piece.first_group, piece.end_group, piece.start, piece.stop]
    return [
        *([piece.name] if is_named else []),
        piece.digest,
        *([piece.file] if is_ranked else []),
        *rows,
    ]
