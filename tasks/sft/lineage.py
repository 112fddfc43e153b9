"""Which stage made what, and where rejected rows are listed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from schemas.run import FileRecord, Receipt
from tasks.sft.checks import REJECTS
from tasks.sft.stages import SplitPlan


def reject_files(
    spools: Mapping[str, Sequence[Receipt]], plans: Sequence[SplitPlan], planned: Sequence[Receipt]
) -> dict[str, FileRecord]:
    """Published name (below `rejects/`) of every reject file."""
    found: dict[str, FileRecord] = {}
    for name, receipts in spools.items():
        for part, receipt in enumerate(receipts):
            found.update(_rejects_of(receipt, f"{name}-tokenize-{part:06d}.parquet"))
    for plan, receipt in zip(plans, planned, strict=True):
        found.update(_rejects_of(receipt, f"{plan.dataset.name}-pack-{plan.split}.parquet"))
    return found


def _rejects_of(receipt: Receipt, name: str) -> dict[str, FileRecord]:
    record = next((record for record in receipt.files if record.path.endswith(f"/{REJECTS}")), None)
    return {} if record is None else {name: record}


def stage_lineage(
    spools: Mapping[str, Sequence[Receipt]],
    plans: Sequence[SplitPlan],
    planned: Sequence[Receipt],
    written: Sequence[Sequence[Receipt]],
) -> dict[str, str]:
    """The stage hash of every step, by a name that says what it made."""
    stages = {
        f"tokenize/{name}/{part:06d}": receipt.stage
        for name, receipts in spools.items()
        for part, receipt in enumerate(receipts)
    }
    for plan, receipt, shards in zip(plans, planned, written, strict=True):
        name = f"{plan.dataset.name}/{plan.split}"
        stages[f"plan/{name}"] = receipt.stage
        if shards:
            stages[f"write/{name}"] = shards[0].stage
    return stages
