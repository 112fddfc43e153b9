"""Find the documents that may be sampled at all: those whose text is not null and has an allowed length.

This runs only where a length filter is set or a footer leaves room for nulls; elsewhere no text is read before
selection. The result for a file is one bit per row, so a billion documents take 125 MB on disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from schemas.run import Receipt, RowLedger
from tasks.corpus.inventory import SourceFile
from tasks.corpus.reading import iter_columns
from tasks.run.contract import Job
from tasks.run.rejects import REJECTS, RejectWriter
from tasks.storage.arrays import write_array


@dataclass(frozen=True, kw_only=True)
class ScreenJob(Job):
    """Screen some files of one bucket.

    Attributes:
        files: the files to read.
        text: their text column.
        min_characters, max_characters: allowed lengths, both included; `None` means no limit.
    """

    task: ClassVar[str] = "screen"
    files: tuple[SourceFile, ...]
    text: str
    min_characters: int
    max_characters: int | None
    label: str = ""


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
    totals = {"rows_in": 0, "rows_used": 0, "filtered": 0}
    nulls = 0
    with RejectWriter(folder / REJECTS) as rejects:
        for position, file in enumerate(job.files):
            allowed, null = _screen(file, job)
            for row in np.flatnonzero(null).tolist():
                rejects.add(file.name, row, "null_text", f"{job.text} is null")
            packed = np.packbits(allowed, bitorder="little")
            records.append(write_array(folder / bitmap_name(position), packed, root))
            totals["rows_in"] += file.rows
            totals["rows_used"] += int(allowed.sum())
            totals["filtered"] += int((~allowed & ~null).sum())
            nulls += int(null.sum())
        records += rejects.finish(root)
    ledger = RowLedger(**totals, rejected={"null_text": nulls} if nulls else {})
    return job.receipt(records, ledger=ledger)


def _screen(file: SourceFile, job: ScreenJob) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return two bool[rows]: whether the text is allowed, and whether it is null."""
    allowed: list[NDArray[np.bool_]] = [np.zeros(0, dtype=bool)]
    null: list[NDArray[np.bool_]] = [np.zeros(0, dtype=bool)]
    for batch in iter_columns(file.path, file.name, range(len(file.groups)), [job.text]):
        text = batch.column(0)
        if pa.types.is_dictionary(text.type):
            text = text.dictionary_decode()
        is_null = text.is_null().to_numpy(zero_copy_only=False)
        length = pc.fill_null(pc.utf8_length(text), -1).to_numpy(zero_copy_only=False)
        fits = length >= job.min_characters
        if job.max_characters is not None:
            fits &= length <= job.max_characters
        null.append(is_null)
        allowed.append(fits & ~is_null)
    return np.concatenate(allowed), np.concatenate(null)
