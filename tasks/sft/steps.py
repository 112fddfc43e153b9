"""The Prefect tasks of pack-sft: each calls one kernel and returns what it returned."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from prefect import task

from schemas.run import Receipt
from schemas.verdict import Verdict
from tasks.inputs.fingerprint import check_unchanged
from tasks.sft.checks import check_totals
from tasks.sft.plan import PlanWork, plan_packs
from tasks.sft.publish import PackedSplit
from tasks.sft.shards.validate import validate_shards
from tasks.sft.tokenize import TokenizeWork, tokenize_part
from tasks.sft.write import WriteWork, write_shards


@dataclass(frozen=True)
class ValidateWork:
    """Shards to validate before they are published."""

    output_dir: str
    packed: tuple[PackedSplit, ...]
    workers: int


@task(name="tokenize")
def tokenize(work: TokenizeWork) -> Receipt:
    """One part of a data set to a token spool."""
    receipt = tokenize_part(work)
    # The receipt is kept under a key made of the inputs' digests, so it must be of just those bytes.
    check_unchanged(work.seen)
    return receipt


@task(name="plan")
def plan(work: PlanWork) -> Receipt:
    """One data set and split to a pack plan."""
    return plan_packs(work)


@task(name="write")
def write(work: WriteWork) -> Receipt:
    """A run of shards of one plan."""
    return write_shards(work)


@task(name="validate", persist_result=False)
def validate(work: ValidateWork) -> Verdict:
    """Every shard, row by row, and the totals; fails on the first error."""
    root = Path(work.output_dir)
    paths = [root / shard for entry in work.packed for shard in entry.files()]
    verdict = validate_shards(paths, "run", work.output_dir, work.workers)
    verdict.raise_if_bad()
    check_totals(work.packed, verdict)
    return verdict
