"""pack-sft: chat data to packed shards with exact loss masks, splits and a blend."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from prefect import flow

from schemas.run import Receipt, RowLedger, RunManifest
from schemas.sft import FLOW, PackSftConfig
from tasks.report.reuse import Reuse
from tasks.run.receipts import Verify
from tasks.runtime.mapping import Each, Once
from tasks.runtime.names import flow_run_name
from tasks.runtime.runners import runner_from_environment
from tasks.runtime.story import tell
from tasks.sft import steps
from tasks.sft.identity import DOMAIN, PackIdentity, identify
from tasks.sft.ledger import check_splits, dataset_ledgers, run_ledger
from tasks.sft.mixture import mixed, rest_jobs, wanted_tokens
from tasks.sft.packed import PackedRun, PackedSplit, made_split
from tasks.sft.publish import contents
from tasks.sft.report import PackReport
from tasks.sft.screen import check_screened
from tasks.sft.stages import cut_jobs, pack_jobs, repeats_jobs, screen_jobs, tokenize_jobs
from tasks.sft.validate import check_totals, validate_jobs
from tasks.steps import finish

log = logging.getLogger("gristmill.pack_sft")


@flow(name=FLOW, flow_run_name=flow_run_name, persist_result=False, task_runner=runner_from_environment())
def pack_sft(config: PackSftConfig, verify: Verify = Verify.SIZE, force: bool = False) -> dict[str, Any]:
    """Pack chat data into shards that a trainer reads.

    Args:
        config: what to pack and how.
        verify: how closely to check cached results before reusing them.
        force: run every step again, even if it is cached.
    """
    return tell(DOMAIN, identify, mill, config, verify, force)


def mill(
    config: PackSftConfig, identity: PackIdentity, each: Each, once: Once, reuse: Reuse | None = None
) -> RunManifest:
    """Run the steps in order: screen, tokenize, cut, find repeats, pack, validate, report, publish."""
    screened = each(steps.screen, screen_jobs(config, identity))
    check_screened(config, screened)

    parts = tokenize_jobs(config, identity)
    receipts = iter(each(steps.tokenize, [job for jobs in parts.values() for job in jobs]))
    spools = {name: [next(receipts) for _ in jobs] for name, jobs in parts.items()}
    ledgers = dataset_ledgers(config, spools)
    _log_tokenized(ledgers, spools)

    cuts = each(steps.cut, cut_jobs(config, spools))
    searches = repeats_jobs(config, spools)
    repeats = each(steps.repeats, [job for jobs in searches.values() for job in jobs]) if searches else []
    splits = pack_jobs(config, spools, cuts, searches)
    receipts = iter(each(steps.pack, [job for split in splits for job in split.jobs]))
    made = [made_split(split, [next(receipts) for _ in split.jobs]) for split in splits]
    wanted = wanted_tokens(config, made)
    rests = rest_jobs(wanted, made, splits)
    made = mixed(wanted, made, each(steps.pack, rests) if rests else [])
    ledger = run_ledger(config, ledgers, made)
    packed = tuple(entry for entry in made if entry.statistics["bins"])
    check_splits(packed)
    _log_packed(packed)

    validated = each(steps.validate, validate_jobs(config, packed))
    check_totals(packed, validated)
    run = PackedRun(config, screened, spools, cuts, repeats, made, packed, ledger, validated)
    report = PackReport(run, identity.tokenizer.folder)
    return finish(DOMAIN, config, identity, contents(run), report, once, reuse)


def _log_tokenized(ledgers: Mapping[str, RowLedger], spools: Mapping[str, Sequence[Receipt]]) -> None:
    for name, ledger in ledgers.items():
        tokens = sum(receipt.statistics["tokens"] for receipt in spools[name])
        rejected = ledger.rows_rejected
        log.info("tokenized %s: %d rows, %d rejected, %d tokens", name, ledger.rows_in, rejected, tokens)


def _log_packed(packed: Sequence[PackedSplit]) -> None:
    for entry in packed:
        counts = entry.statistics
        full = counts["packing_efficiency"]
        where = f"{entry.dataset} {entry.split}"
        log.info(
            "packed %s: %d sequences in %d bins, %.2f%% full",
            where,
            counts["sequences"],
            counts["bins"],
            full,
        )
