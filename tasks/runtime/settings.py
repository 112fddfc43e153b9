"""Prefect, quiet and off the network. No Prefect import at module level: the environment comes first."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, MutableMapping

_QUIET = {
    # Usage data: the SDK's (asked on `import prefect`, sent to a vendor), the server's, and the UI's.
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    # Spans and resource metrics are for the hosted product.
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
    "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
    "PREFECT_SERVER_API_HOST": "127.0.0.1",
    # A cold start takes 11-16 s on 2 cores; the default gives up after 20.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    "PREFECT_CLI_COLORS": "false",
    "PREFECT_CLI_PROMPT": "false",
    "PREFECT_LOGGING_COLORS": "false",
    # Our modules also log outside of flow runs (readers, the command line).
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
}


def quiet_environment(environ: MutableMapping[str, str] = os.environ, *, debug: bool = False) -> None:
    """Set defaults for Prefect in `environ`; values that are already there stay.

    Call it before anything imports prefect, which reads the environment once.

    Args:
        environ: the environment to change.
        debug: let Prefect log everything.
    """
    for name, value in _QUIET.items():
        environ.setdefault(name, value)
    environ.setdefault("PREFECT_LOGGING_LEVEL", "DEBUG" if debug else "WARNING")


@contextlib.contextmanager
def run_settings() -> Iterator[None]:
    """Settings for a flow run started from the command line.

    Heartbeats are off: ending their thread adds up to 1 s to a run, and nobody watches for crashes of a run
    whose process sits in the user's terminal. No environment variable can say "off".
    """
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield
