"""The Prefect tasks of count-words."""

from __future__ import annotations

from contract.word_counts.count import count_words
from contract.word_counts.validate import check_written

from tasks.runtime.step import check, step

count = step("count", count_words)
validate = check("validate", check_written)
