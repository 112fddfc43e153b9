"""validate: check anything that Gristmill makes or reads."""

from __future__ import annotations

import logging
from typing import Any

from prefect import flow

from schemas.validation import FLOW, ValidateConfig
from tasks import steps
from tasks.runtime.names import flow_run_name

log = logging.getLogger("gristmill.validate")


@flow(name=FLOW, flow_run_name=flow_run_name, persist_result=False)
def validate(config: ValidateConfig) -> dict[str, Any]:
    """Check a run, an output folder, a folder of shards or one file; fail if a rule is broken.

    Args:
        config: what to check and how closely.

    Returns:
        The verdict, as JSON.
    """
    verdict = steps.validate(config)
    for fault in verdict.faults:
        log.warning("%s: %s: %s: %s", fault.level, fault.where, fault.rule, fault.detail)
    verdict.raise_if_bad()
    log.info("%s: valid", verdict.path)
    return verdict.model_dump(mode="json")
