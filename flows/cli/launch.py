"""Start a flow from the command line: quiet Prefect, the chosen runner, our own errors."""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flows.cli.progress import showing_progress
from schemas.run import RunManifest
from tasks.runtime.settings import quiet_environment, run_settings

if TYPE_CHECKING:
    from tasks.server.address import Api
    from tasks.server.link import ServerLink

log = logging.getLogger("gristmill")


def run_flow(
    package: str, module: str, runner: str, workers: int, address: str | None = None, **parameters: Any
) -> RunManifest:
    """Run the flow that a module is named after, in this process, and return the manifest it published.

    A server that fails after the start does not fail the run; see `tasks.server.link`.

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
    # What is sent at the end is sent as quietly.
    with run_settings(), _linked(api) as link:
        flow = getattr(importlib.import_module(f"{package}.{module}"), module)

        def say_where(_flow: Any, flow_run: Any, _state: Any) -> None:
            log.info("follow it at %s/runs/flow-run/%s", api.ui, flow_run.id)

        hooks = [*flow.on_running_hooks, *([say_where] if api.ui else [])]
        chosen = flow.with_options(task_runner=make_runner(runner, workers), on_running=hooks)
        with showing_progress():
            result = chosen(**parameters)
    if link.unrecorded:
        log.warning("the run is complete and published, but the Prefect server has no record of its end")
    return RunManifest.model_validate(result)


@contextlib.contextmanager
def _linked(api: Api) -> Iterator[ServerLink]:
    """Let all of Prefect's requests in this context wait as `tasks.server.link` says, and then send what is left."""
    from prefect.context import SyncClientContext

    from tasks.runtime import stopping
    from tasks.runtime.sending import AFTER_INTERRUPT_S, SEND_S, finish_sending
    from tasks.server.link import PatientTransport, ServerLink, transport_to

    link = ServerLink(api.url, api.token, api.ended)
    with link.watched():
        try:
            clients = SyncClientContext({"transport": PatientTransport(link, transport_to(api.url))})
            # Prefect shares a client only with those that ask for its settings, and its artifacts ask for none.
            clients._httpx_settings = None
            with clients:
                yield link
        except Exception as error:
            # Prefect may have wrapped it.
            if link.failure is not None and error is not link.failure:
                raise link.failure from error
            raise
        except BaseException:
            link.interrupt()
            raise
        finally:
            sent = False
            try:
                sent = finish_sending(lambda: link.sick, AFTER_INTERRUPT_S if link.interrupted else SEND_S)
            finally:
                # Also if it was interrupted.
                stopping.unsent |= not sent
