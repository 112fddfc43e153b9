"""Decide which failures of a task to retry: only storage that may recover.

A wrong configuration, a broken input or totals that do not add up fail the same way every time.
"""

from __future__ import annotations

import errno
from typing import Any

from schemas.errors import StorageError

# Three retries within seven seconds: network file systems hiccup that long; a full disk rarely clears up later.
DELAYS_S = (1.0, 2.0, 4.0)

# A disk or mount that hiccups, or is full or missing for a moment.
TRANSIENT = frozenset(
    {
        errno.EAGAIN,
        errno.EBUSY,
        errno.EDQUOT,
        errno.EINTR,
        errno.EIO,
        errno.ENETDOWN,
        errno.ENETRESET,
        errno.ENETUNREACH,
        errno.ENOLCK,
        errno.ENOSPC,
        errno.ECONNABORTED,
        errno.ECONNRESET,
        errno.EHOSTUNREACH,
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)


def is_transient(error: object) -> bool:
    """Return whether `error` is a `StorageError` whose cause may pass."""
    cause = error.__cause__ if isinstance(error, StorageError) else None
    return isinstance(cause, OSError) and cause.errno in TRANSIENT


def may_pass(task: Any, task_run: Any, state: Any) -> bool:
    """Answer Prefect whether to retry a failed task; the state holds the exception itself."""
    return is_transient(state.data)


RETRIES: dict[str, Any] = {
    "retries": len(DELAYS_S),
    "retry_delay_seconds": list(DELAYS_S),
    "retry_condition_fn": may_pass,
}
