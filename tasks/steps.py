"""The Prefect tasks that belong to no single domain."""

from __future__ import annotations

from pathlib import Path

from prefect import task

from schemas.validation import ValidateConfig
from schemas.verdict import Verdict
from tasks.validation import validate_path


@task(name="validate", persist_result=False)
def validate(config: ValidateConfig) -> Verdict:
    """Everything at one path, faults included."""
    return validate_path(Path(config.path), full=config.level == "full")
