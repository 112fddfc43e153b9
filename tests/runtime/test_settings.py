from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tasks.runtime.settings import quiet_environment


def test_the_users_own_values_win() -> None:
    environ = {"PREFECT_LOGGING_LEVEL": "INFO", "DO_NOT_TRACK": "0"}
    quiet_environment(environ, debug=True)
    assert environ["PREFECT_LOGGING_LEVEL"] == "INFO"
    assert environ["DO_NOT_TRACK"] == "0"
    assert environ["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"


def test_debug_logs_everything() -> None:
    environ: dict[str, str] = {}
    quiet_environment(environ, debug=True)
    assert environ["PREFECT_LOGGING_LEVEL"] == "DEBUG"


@pytest.mark.parametrize(
    ("environ", "name", "value"),
    [
        ({}, "NO_PROXY", None),
        ({"HTTP_PROXY": "http://proxy"}, "NO_PROXY", "127.0.0.1,localhost"),
        (
            {"https_proxy": "http://proxy", "NO_PROXY": "corp, localhost"},
            "NO_PROXY",
            "corp,localhost,127.0.0.1",
        ),
        ({"ALL_PROXY": "http://proxy", "no_proxy": "corp"}, "no_proxy", "corp,127.0.0.1,localhost"),
        ({"HTTP_PROXY": "http://proxy", "NO_PROXY": "*"}, "NO_PROXY", "*"),
    ],
)
def test_a_local_server_is_reached_without_the_proxy(
    environ: dict[str, str], name: str, value: str | None
) -> None:
    quiet_environment(environ)
    assert environ.get(name) == value


def test_prefect_knows_every_setting() -> None:
    code = """
import json, os
from tasks.runtime.settings import quiet_environment, run_settings
quiet_environment()
from prefect.settings import get_current_settings
known = get_current_settings().to_environment_variables(exclude_unset=True)
with run_settings():
    heartbeat = get_current_settings().flows.heartbeat_frequency
print(json.dumps([known, dict(os.environ), heartbeat]))
"""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    output = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True, env=environ
    )
    known, environ, heartbeat = json.loads(output.stdout)
    for name, value in environ.items():
        if name.startswith("PREFECT_"):
            assert known[name].lower() == value.lower(), name
    assert heartbeat is None
    assert output.stderr == ""


def test_importing_the_settings_does_not_import_prefect() -> None:
    code = "import sys, tasks.runtime.settings; print('prefect' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout == "False\n"
