"""Run a check in a process of its own, where a trainer would."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any


def in_fresh_process(check: Callable[..., None], *arguments: Any) -> None:
    """Run a check: forked workers would inherit the threads and servers of a process of tests."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(check, *arguments).result(timeout=300)
