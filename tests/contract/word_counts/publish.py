"""Word counts, published: one file for the whole input."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from contract.word_counts.schema import COUNTS, CountWordsConfig

from schemas.run import Receipt, RowLedger
from tasks.run.publish import Contents, json_document, part_stages
from tasks.run.rejects import numbered, reject_links


@dataclass(frozen=True)
class CountedRun:
    """All parts counted; `ledger` is of the whole run."""

    config: CountWordsConfig
    counted: Sequence[Receipt]
    ledger: RowLedger


def total_counts(run: CountedRun) -> dict[str, int]:
    """How often each word occurs, without the rare ones."""
    total: Counter[str] = Counter()
    for receipt in run.counted:
        total.update(json.loads(Path(run.config.output_dir, receipt.files[0].path).read_bytes()))
    return {word: times for word, times in sorted(total.items()) if times >= run.config.min_count}


def contents(run: CountedRun) -> Contents:
    """The counts as they are to be published."""
    counts = total_counts(run)
    return Contents(
        links=reject_links(numbered("input", run.counted)),
        documents={COUNTS: json_document(counts)},
        ledger=run.ledger,
        statistics={"words": sum(counts.values()), "distinct": len(counts)},
        stages=part_stages("count", run.counted),
    )
