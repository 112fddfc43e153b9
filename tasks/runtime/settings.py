"""Keep Prefect quiet and off the network. Never import Prefect at module level here: the environment comes first."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping, MutableMapping

_QUIET = {
    # Usage data: the SDK's, sent from `import prefect` on, and the server's, which also controls the UI's.
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    # Spans and resource metrics are for the hosted product.
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
    "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
    "PREFECT_SERVER_API_HOST": "127.0.0.1",
    # A cold start takes 11-16 s on 2 cores; Prefect's default gives up after 20.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    "PREFECT_CLI_COLORS": "false",
    "PREFECT_CLI_PROMPT": "false",
    "PREFECT_LOGGING_COLORS": "false",
    # Our modules also log outside of flow runs (readers, the command line).
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
}

# Each prints a long line for every event that could not be sent; the run says once that the server is gone.
_QUIET_SENDERS = ("APILogWorker", "EventsWorker", "prefect._internal.concurrency", "prefect.events.clients")
_RUN_LOGGERS = ("prefect.flow_runs", "prefect.task_runs")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_LOOPBACK = ("127.0.0.1", "localhost")


def quiet_environment(environ: MutableMapping[str, str] = os.environ, *, debug: bool = False) -> None:
    """Set defaults for Prefect in `environ`; keep existing values.

    Only `NO_PROXY` is extended, if a proxy is set.

    Call it before anything imports prefect, which reads the environment once.

    Args:
        environ: the environment to change.
        debug: let Prefect log everything.
    """
    for name, value in _QUIET.items():
        environ.setdefault(name, value)
    environ.setdefault("PREFECT_LOGGING_LEVEL", "DEBUG" if debug else "WARNING")
    _reach_loopback(environ)


def _reach_loopback(environ: MutableMapping[str, str]) -> None:
    """Exclude loopback from a configured proxy, which Prefect would ask for its own local server."""
    if not any(environ.get(name) or environ.get(name.lower()) for name in _PROXIES):
        return
    # The lower-case name wins if both are set.
    name = "no_proxy" if "no_proxy" in environ else "NO_PROXY"
    hosts = [host.strip() for host in environ.get(name, "").split(",") if host.strip()]
    if "*" not in hosts:
        environ[name] = ",".join(hosts + [host for host in _LOOPBACK if host not in hosts])


def quiet_run_logs(environ: Mapping[str, str] = os.environ) -> None:
    """Keep Prefect's logs about flow and task runs off this process's terminal.

    It logs every failure with its traceback, once for the task and once for the flow; the command line prints
    one message instead. The server still gets these logs. With `PREFECT_LOGGING_LEVEL` below WARNING, as
    `--debug` sets it, they stay on the terminal.
    """
    if environ.get("PREFECT_LOGGING_LEVEL", "INFO").upper() not in ("DEBUG", "INFO"):
        for name in _RUN_LOGGERS:
            logging.getLogger(name).propagate = False


@contextlib.contextmanager
def run_settings() -> Iterator[None]:
    """Apply the settings for a flow run started from the command line.

    Heartbeats are off: stopping their thread adds up to 1 s to a run, and nobody watches for crashes of a run
    in the user's own terminal. No environment variable can switch them off. Nothing but the command line's own
    client asks for the server's version: a worker process would fail if the server was gone.
    """
    from prefect.settings import (
        PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED,
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
        temporary_settings,
    )

    before = {name: logging.getLogger(name).propagate for name in _RUN_LOGGERS}
    quiet_run_logs()
    silent = _QUIET_SENDERS if os.environ.get("PREFECT_LOGGING_LEVEL") != "DEBUG" else ()
    for name in silent:
        logging.getLogger(name).addFilter(_drop)
    # Prefect and the standard library would print what became of each batch of logs that could not be sent.
    raising, logging.raiseExceptions = logging.raiseExceptions, False
    try:
        with temporary_settings(
            {
                PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
                PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED: False,
            }
        ):
            yield
    finally:
        logging.raiseExceptions = raising
        for name in silent:
            logging.getLogger(name).removeFilter(_drop)
        for name, propagate in before.items():
            logging.getLogger(name).propagate = propagate


def _drop(_: logging.LogRecord) -> bool:
    return False
