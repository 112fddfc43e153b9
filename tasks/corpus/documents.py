"""Validate sample shards without their source, whether we or another tool wrote them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from schemas.corpus import OWN_COLUMNS
from schemas.verdict import Verdict
from tasks.inputs.columns import check_columns, is_text
from tasks.storage.threads import map_threads

_COLUMNS = dict.fromkeys(OWN_COLUMNS, (is_text, "string"))


def validate_documents(shards: Sequence[Path], kind: str, where: str) -> Verdict:
    """Read every row and check that text, source and bucket are present and valid UTF-8.

    Args:
        kind: `file` or `folder`, for the verdict.
        where: the path the user gave, for the verdict.

    Returns:
        A verdict with the counts `shards` and `rows`.
    """
    checked = map_threads(lambda shard: check_columns(shard, _COLUMNS), shards, os.cpu_count() or 1)
    return Verdict(
        path=where,
        kind=kind,
        counts={"shards": len(shards), "rows": sum(rows for rows, _ in checked)},
        faults=tuple(fault for _, faults in checked for fault in faults),
    )
