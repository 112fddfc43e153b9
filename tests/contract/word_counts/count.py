"""The kernel: the words of one part of the input."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from schemas.run import Receipt, RowLedger
from tasks.inputs.readers import RowFault, read_rows
from tasks.inputs.segments import Segment
from tasks.run.contract import Job
from tasks.run.rejects import REJECTS, RejectWriter
from tasks.storage.atomic import write_file


@dataclass(frozen=True, kw_only=True)
class CountJob(Job):
    """Some pieces of the input."""

    task: ClassVar[str] = "count"
    segments: tuple[Segment, ...]


def count_words(job: CountJob) -> Receipt:
    """Count the words of every row that has a text; reject the others."""
    counts: Counter[str] = Counter()
    rejected: Counter[str] = Counter()
    used = 0
    with RejectWriter(job.folder / REJECTS) as rejects:
        for segment in job.segments:
            for batch in read_rows(segment):
                for number, row in batch:
                    if isinstance(row, RowFault):
                        reason, detail = row.reason, row.detail
                    elif isinstance(row.get("text"), str):
                        counts.update(row["text"].split())
                        used += 1
                        continue
                    else:
                        reason, detail = "no_text", "the field text is missing or not a string"
                    rejects.add(segment.name, number, reason, detail)
                    rejected[reason] += 1
        records = rejects.finish(job.root)
    counted = write_file(job.folder / "counts.json", json.dumps(dict(sorted(counts.items()))).encode())
    return job.receipt(
        [counted.record(job.root), *records],
        RowLedger(rows_in=used + rejects.rows, rows_used=used, rejected=dict(sorted(rejected.items()))),
        {"words": sum(counts.values())},
    )
