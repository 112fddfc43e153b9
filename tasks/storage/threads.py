"""Read many files at once, without waiting for them after Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def map_threads(work: Callable[[T], R], items: Iterable[T], workers: int) -> list[R]:
    """Return what `work` returns for each item, in their order, with so many threads.

    What has not begun when an item fails, or when this is interrupted, is dropped. After an interrupt nothing is
    waited for either: a file of a terabyte may just be hashed. So `work` must not write.

    Raises:
        Exception: what `work` raised for the first item that failed.

    >>> map_threads(len, ["a", "bc"], workers=2)
    [1, 2]
    """
    pool = ThreadPoolExecutor(workers)
    try:
        results = list(pool.map(work, items))
    except BaseException as error:
        pool.shutdown(wait=isinstance(error, Exception), cancel_futures=True)
        raise
    pool.shutdown()
    return results
