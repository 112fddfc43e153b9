"""Validate sample shards by themselves, made here or by another tool: what can be told without their source."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from schemas.corpus import OWN_COLUMNS
from schemas.verdict import Verdict
from tasks.inputs.columns import check_columns, is_text

_COLUMNS = dict.fromkeys(OWN_COLUMNS, (is_text, "string"))


def validate_documents(shards: Sequence[Path], kind: str, where: str) -> Verdict:
    """Read every row: text, source and bucket are there and valid UTF-8.

    Args:
        kind: `file` or `folder`, for the verdict.
        where: what the user named, for the verdict.

    Returns:
        Counts `shards` and `rows`.
    """
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        checked = list(pool.map(lambda shard: check_columns(shard, _COLUMNS), shards))
    return Verdict(
        path=where,
        kind=kind,
        counts={"shards": len(shards), "rows": sum(rows for rows, _ in checked)},
        faults=tuple(fault for _, faults in checked for fault in faults),
    )
