"""Send what Prefect keeps for the server in the background, and give up in time.

When a process ends, Prefect waits until all logs and events are sent, and tries ten seconds for each event:
minutes if the server is gone.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable
from typing import Any

from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker

SEND_S = 10.0
AFTER_INTERRUPT_S = 2.0
_LOOK_S = 0.1


def finish_sending(hopeless: Callable[[], bool], limit_s: float) -> bool:
    """Send the last logs and events; return whether all were sent, or dropped as nobody took them.

    Args:
        hopeless: whether to give up now.
        limit_s: when to give up in any case.
    """
    deadline = time.monotonic() + limit_s
    left: set[Any] = set()
    for worker in (EventsWorker, APILogWorker):
        left |= worker.drain_all(timeout=0)[1]  # type: ignore[index]
    while left and not hopeless() and time.monotonic() < deadline:
        left = concurrent.futures.wait(left, timeout=_LOOK_S).not_done
    return not left
