"""End within seconds, whatever is running: cancelled in the UI, Ctrl-C, or SIGTERM.

A worker thread in the middle of a large part cannot be interrupted, and the pool would wait for it. Nothing is lost
by not waiting: files appear whole or not at all, locks end with their process, and the next run resumes after the
last receipt.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

# Enough for an orderly end if no long task is running; a cancelled run must be gone within 10 s.
GRACE_S = 5.0
_EXIT_CODE = 130
# Called before this process ends without the usual clean-up: what would outlive it.
last_acts: list[Callable[[], None]] = []
# Set when the run was interrupted: a task of many parts then ends after the current one, if it is in this process.
stopped = threading.Event()
# Whether Prefect could not send all it had for the server, and would go on trying for minutes at the usual end.
unsent = False


@contextlib.contextmanager
def stopping_soon(grace_s: float = GRACE_S) -> Iterator[None]:
    """End this process `grace_s` after its work in the context was interrupted, if it is still running."""
    stopped.clear()
    try:
        yield
    except Exception:
        raise
    except BaseException:
        # KeyboardInterrupt, or Prefect's TerminationSignal.
        stopped.set()
        timer = threading.Timer(grace_s, _end)
        timer.daemon = True
        timer.start()
        _tell_server()
        raise


def _tell_server() -> None:
    """Report the run as over before this process ends itself; otherwise the run would stay at Running."""
    from prefect.client.schemas import State
    from prefect.context import FlowRunContext
    from prefect.states import Cancelled

    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    # The process must end even if this is interrupted.
    with contextlib.suppress(Exception):
        state: State[Any] = Cancelled(message="stopped; run it again to resume")
        context.client.set_flow_run_state(context.flow_run.id, state, force=True)


def _end() -> None:
    with contextlib.suppress(OSError):
        print("gristmill: stopped; run the same command again to resume", file=sys.stderr, flush=True)
    end_now(_EXIT_CODE)


def end_now(code: int) -> None:
    """End this process without waiting for threads, or for Prefect to send what it still has."""
    for act in tuple(last_acts):
        with contextlib.suppress(Exception):
            act()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
