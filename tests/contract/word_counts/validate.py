"""What must hold before word counts are published."""

from __future__ import annotations

from contract.word_counts.publish import CountedRun, total_counts

from schemas.errors import IntegrityError


def check_written(run: CountedRun) -> int:
    """Compare the words of all parts with what is to be published; returns them."""
    written = sum(int(receipt.statistics["words"]) for receipt in run.counted)
    found = sum(total_counts(run).values())
    if found > written or (run.config.min_count == 1 and found != written):
        raise IntegrityError(f"{written} words were counted and {found} are there", code="totals")
    return written
