"""Which signals the processes that tests start receive."""

from __future__ import annotations

import subprocess
import sys

IN_THE_BACKGROUND = """
import signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
import conftest
ask = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
subprocess.run([sys.executable, "-c", ask], check=True)
"""


def test_what_a_test_starts_can_be_interrupted_even_if_the_suite_runs_in_the_background() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_THE_BACKGROUND], check=True, capture_output=True, text=True
    )
    assert done.stdout == "True\n"
