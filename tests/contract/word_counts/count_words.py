"""count-words: how often each word occurs."""

from __future__ import annotations

from typing import Any

from contract.word_counts import steps
from contract.word_counts.identity import DOMAIN, identify
from contract.word_counts.ledger import run_ledger
from contract.word_counts.publish import CountedRun, contents
from contract.word_counts.report import CountReport
from contract.word_counts.schema import FLOW, CountWordsConfig
from contract.word_counts.stages import count_jobs
from prefect import flow

from schemas.run import RunManifest
from tasks.report.reuse import Reuse
from tasks.run.identity import Identity, Source
from tasks.run.receipts import Verify
from tasks.runtime.mapping import Each, Once
from tasks.runtime.names import flow_run_name
from tasks.runtime.runners import runner_from_environment
from tasks.runtime.story import tell
from tasks.steps import finish


@flow(name=FLOW, flow_run_name=flow_run_name, persist_result=False, task_runner=runner_from_environment())
def count_words(
    config: CountWordsConfig, verify: Verify = Verify.SIZE, force: bool = False
) -> dict[str, Any]:
    """Count the words of JSON lines."""
    return tell(DOMAIN, identify, mill, config, verify, force)


def mill(
    config: CountWordsConfig,
    identity: Identity[Source],
    each: Each,
    once: Once,
    reuse: Reuse | None = None,
) -> RunManifest:
    """The story of a run: count, validate, report, publish."""
    counted = each(steps.count, count_jobs(config, identity))
    run = CountedRun(config, tuple(counted), run_ledger(config, counted))
    once(steps.validate, run)
    return finish(DOMAIN, config, identity, contents(run), CountReport(run), once, reuse)
