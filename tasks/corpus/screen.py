"""Find the documents that may be sampled at all: those that `where` wants, with a text of an allowed length.

This runs only where a filter is set, a footer leaves room for nulls, or texts are stored as bytes; elsewhere nothing
is read before selection, and for `where` alone no text is. The result for a file is one bit per row, so a billion
documents take 125 MB on disk.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from schemas.run import Receipt, RowLedger
from tasks.corpus.inventory import SourceFile
from tasks.corpus.reading import iter_columns
from tasks.corpus.sources.where import Where, matches
from tasks.inputs.columns import as_text
from tasks.run.contract import Job
from tasks.run.rejects import REJECTS, RejectWriter
from tasks.storage.arrays import write_array

# Why a row is rejected, and in words.
_SAID = {"null_text": "null", "invalid_utf8": "not valid UTF-8"}


@dataclass(frozen=True, kw_only=True)
class ScreenJob(Job):
    """Screen some files of one bucket.

    Attributes:
        files: the files to read.
        text: their text column.
        min_characters, max_characters: allowed lengths, both included; `None` means no limit.
        where: values that a row must have.
        batch_rows: most rows read at once.
    """

    task: ClassVar[str] = "screen"
    files: tuple[SourceFile, ...]
    text: str
    min_characters: int
    max_characters: int | None
    where: Where
    batch_rows: int
    label: str = ""

    def reads_text(self, file: SourceFile) -> bool:
        """Return whether the file's texts must be read."""
        return self.min_characters > 0 or self.max_characters is not None or file.may_be_bad


def bitmap_name(position: int) -> str:
    """Return the name of the bitmap of the file at this position of its job.

    A bitmap has one bit for each row, the first row in the lowest bit.
    """
    return f"eligible-{position:06d}.npy"


def screen_files(job: ScreenJob) -> Receipt:
    """Read the texts of the job's files and write down which of them may be sampled.

    Raises:
        InputError: a file is damaged.
        StorageError: a bitmap cannot be written.
    """
    root = job.root
    folder = job.folder
    records = []
    totals: Counter[str] = Counter()
    rejected: Counter[str] = Counter()
    with RejectWriter(folder / REJECTS) as rejects:
        for position, file in enumerate(job.files):
            allowed, bad = _screen(file, job)
            for reason, rows in bad.items():
                rejected[reason] += len(rows)
                totals["filtered"] -= len(rows)
            for row, reason in sorted((row, reason) for reason, rows in bad.items() for row in rows.tolist()):
                rejects.add(file.name, row, reason, f"{job.text} is {_SAID[reason]}")
            packed = np.packbits(allowed, bitorder="little")
            records.append(write_array(folder / bitmap_name(position), packed, root))
            totals["rows_in"] += file.rows
            totals["rows_used"] += int(allowed.sum())
            totals["filtered"] += int((~allowed).sum())
        records += rejects.finish(root)
    ledger = RowLedger(**totals, rejected={reason: rows for reason, rows in rejected.items() if rows})
    return job.receipt(records, ledger=ledger)


def _screen(file: SourceFile, job: ScreenJob) -> tuple[NDArray[np.bool_], dict[str, NDArray[np.int64]]]:
    """Return bool[rows], whether a row is allowed, and the rows in `where` without a text, by reason."""
    allowed: list[NDArray[np.bool_]] = [np.zeros(0, dtype=bool)]
    bad: dict[str, list[NDArray[np.int64]]] = {reason: [np.zeros(0, np.int64)] for reason in _SAID}
    row = 0
    columns = list(dict.fromkeys([*([job.text] if job.reads_text(file) else []), *job.where]))
    for batch in iter_columns(file.path, file.name, range(len(file.groups)), columns, job.batch_rows):
        wanted = matches(batch, job.where)
        if job.reads_text(file):
            text, invalid = as_text(batch.column(0))
            null = text.is_null().to_numpy(zero_copy_only=False)
            bad["null_text"].append(row + np.flatnonzero(wanted & null & ~invalid))
            bad["invalid_utf8"].append(row + np.flatnonzero(wanted & invalid))
            wanted &= ~null & _fits(text, job)
        allowed.append(wanted)
        row += batch.num_rows
    return np.concatenate(allowed), {reason: np.concatenate(rows) for reason, rows in bad.items()}


def _fits(text: pa.Array, job: ScreenJob) -> NDArray[np.bool_]:
    """Return bool[n]: whether a text has an allowed length; a null has none."""
    length = pc.fill_null(pc.utf8_length(text), -1).to_numpy(zero_copy_only=False)
    fits = length >= job.min_characters
    if job.max_characters is not None:
        fits &= length <= job.max_characters
    return np.asarray(fits)
