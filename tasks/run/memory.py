"""Return memory to the system."""

from __future__ import annotations

import ctypes

import pyarrow as pa

_M_ARENA_MAX = -8


def release_memory() -> None:
    """Let Arrow allocate through the C library from now on, and return its unused memory to the system.

    Arrow's own pool and the thread heaps keep freed memory: at 10 million rows, the second pass of
    build-probe-rows took 100 MB more without this. Call it at the start of a task that needs much memory.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):  # glibc
        # New threads share one heap. With heaps of their own, those that read runs kept 100 MB of a worker.
        library.mallopt(_M_ARENA_MAX, 1)
        library.malloc_trim(0)
