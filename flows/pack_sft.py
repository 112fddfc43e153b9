"""pack-sft: chat data to packed shards with exact loss masks, splits and a blend."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from prefect import flow

from schemas.run import Receipt, RowLedger, RunManifest
from schemas.sft import FLOW, PUBLISHED, PackSftConfig
from tasks.report.reuse import Reuse
from tasks.run.layout import claim
from tasks.run.receipts import Verify
from tasks.runtime.mapping import Each, Once, each_with_receipts, run_once
from tasks.runtime.names import flow_run_name, name_run
from tasks.runtime.runners import runner_from_environment
from tasks.sft import steps
from tasks.sft.checks import check_rejects, check_splits, run_ledger
from tasks.sft.identity import Identity, identify
from tasks.sft.lineage import reject_files, stage_lineage
from tasks.sft.publish import PackedRun, PackedSplit, publication
from tasks.sft.report import PackDetails
from tasks.sft.stages import packed_split, plan_works, tokenize_works, write_works
from tasks.steps import publish_with_report

log = logging.getLogger("gristmill.pack_sft")


@flow(name=FLOW, flow_run_name=flow_run_name, persist_result=False, task_runner=runner_from_environment())
def pack_sft(config: PackSftConfig, verify: Verify = Verify.SIZE, force: bool = False) -> dict[str, Any]:
    """Pack chat data into shards a trainer reads.

    Args:
        config: what to pack and how.
        verify: how closely cached results are checked before they are used again.
        force: do every step again, whatever is cached.
    """
    identity = identify(config)
    name_run(config, identity.run_hash)
    reuse = Reuse()
    each = each_with_receipts(Path(config.output_dir), verify, force, reuse)
    return mill(config, identity, each, run_once, reuse).model_dump(mode="json")


def mill(
    config: PackSftConfig, identity: Identity, each: Each, once: Once, reuse: Reuse | None = None
) -> RunManifest:
    """The story of a run: tokenize, plan, write, validate, report, publish."""
    root = Path(config.output_dir)
    claim(root, FLOW, PUBLISHED)

    parts = tokenize_works(config, identity)
    receipts = iter(each(steps.tokenize, [work for works in parts.values() for work in works]))
    spools = {name: [next(receipts) for _ in works] for name, works in parts.items()}
    ledgers = {
        dataset.name: check_rejects(dataset, spools[dataset.name], config.max_reject_fraction, root)
        for dataset in config.datasets
    }
    _log_tokenized(ledgers, spools)

    plans = plan_works(config, spools)
    planned = each(steps.plan, [plan.work for plan in plans])
    ledger = run_ledger(ledgers, plans, planned, config.max_reject_fraction, root)

    shards = [
        write_works(config, plan, receipt, spools[plan.dataset.name][0])
        for plan, receipt in zip(plans, planned, strict=True)
    ]
    receipts = iter(each(steps.write, [work for works in shards for work in works]))
    written = [[next(receipts) for _ in works] for works in shards]
    packed = tuple(
        packed_split(*parts)
        for parts in zip(plans, planned, written, strict=True)
        if parts[1].statistics["bins"]
    )
    check_splits(packed)
    _log_packed(packed)

    once(steps.validate, steps.ValidateWork(config.output_dir, packed, config.workers))
    run = PackedRun(
        config=config,
        run_hash=identity.run_hash,
        packed=packed,
        rejects=reject_files(spools, plans, planned),
        ledger=ledger,
        stages=stage_lineage(spools, plans, planned, written),
        inputs=tuple(identity.records()),
        seen=identity.seen,
    )
    manifest = publish_with_report(
        publication(run), PackDetails(run, identity.tokenizer.folder), config.alarms, reuse, once
    )
    log.info("published run %s: %d rows used of %d", manifest.run_hash, ledger.rows_used, ledger.rows_in)
    return manifest


def _log_tokenized(ledgers: dict[str, RowLedger], spools: dict[str, list[Receipt]]) -> None:
    for name, ledger in ledgers.items():
        tokens = sum(receipt.statistics["tokens"] for receipt in spools[name])
        rejected = ledger.rows_rejected
        log.info("tokenized %s: %d rows, %d rejected, %d tokens", name, ledger.rows_in, rejected, tokens)


def _log_packed(packed: tuple[PackedSplit, ...]) -> None:
    for entry in packed:
        plan = entry.plan.statistics
        full = plan["packing_efficiency"]
        where = f"{entry.dataset} {entry.split}"
        log.info(
            "packed %s: %d sequences in %d bins, %.2f%% full", where, plan["sequences"], plan["bins"], full
        )
