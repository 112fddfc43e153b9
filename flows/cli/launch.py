"""Start a flow from the command line: quiet Prefect, the chosen runner, our own errors."""

from __future__ import annotations

import importlib
import logging
from typing import Any

from flows.cli.progress import showing_progress
from schemas.run import RunManifest
from tasks.runtime.settings import quiet_environment, run_settings

log = logging.getLogger("gristmill")


def run_flow(
    package: str, module: str, runner: str, workers: int, address: str | None = None, **parameters: Any
) -> RunManifest:
    """Run the flow that a module is named after, in this process, and return the manifest it published.

    Args:
        package, module: where the flow is.
        runner: `threads` or `processes`.
        workers: how many tasks run at once.
        address: the Prefect server to use instead of the configured, running or embedded one.
        parameters: arguments of the flow.

    Raises:
        GristmillError: the flow raised it, or no server could be reached.
    """
    quiet_environment(debug=log.isEnabledFor(logging.DEBUG))
    from tasks.runtime.runners import make_runner
    from tasks.server.address import use_api

    api = use_api(address)
    with run_settings():
        flow = getattr(importlib.import_module(f"{package}.{module}"), module)

        def say_where(_flow: Any, flow_run: Any, _state: Any) -> None:
            log.info("follow it at %s/runs/flow-run/%s", api.ui, flow_run.id)

        hooks = [*flow.on_running_hooks, *([say_where] if api.ui else [])]
        chosen = flow.with_options(task_runner=make_runner(runner, workers), on_running=hooks)
        with showing_progress():
            result = chosen(**parameters)
    return RunManifest.model_validate(result)
