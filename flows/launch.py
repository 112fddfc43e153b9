"""Starting a flow from the command line: quiet Prefect, the chosen runner, our own errors."""

from __future__ import annotations

import importlib
import logging
from typing import Any

from schemas.run import RunManifest
from tasks.runtime.settings import quiet_environment, run_settings

log = logging.getLogger("gristmill")


def run_flow(module: str, runner: str, workers: int, **parameters: Any) -> RunManifest:
    """Run `flows/{module}.py`'s flow of the same name in this process; returns the manifest it published.

    Raises:
        GristmillError: what the flow raised.
    """
    quiet_environment(debug=log.isEnabledFor(logging.DEBUG))
    from tasks.runtime.runners import make_runner

    with run_settings():
        flow = getattr(importlib.import_module(f"flows.{module}"), module)
        result = flow.with_options(task_runner=make_runner(runner, workers))(**parameters)
    return RunManifest.model_validate(result)
