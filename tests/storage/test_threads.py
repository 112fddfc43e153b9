"""Several files at once: in order, up to the first that fails."""

from __future__ import annotations

import threading

import pytest

from tasks.storage.threads import map_threads


def test_results_are_in_the_order_of_the_items() -> None:
    second = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert second.wait(10)
        second.set()
        return 10 * item

    assert map_threads(work, range(4), workers=2) == [0, 10, 20, 30]
    assert map_threads(work, [], workers=2) == []


def test_the_first_failure_is_raised_when_what_began_has_ended() -> None:
    began, ended = set(), set()

    def work(item: int) -> None:
        began.add(item)
        if item == 1:
            raise ValueError(item)
        threading.Event().wait(0.05)
        ended.add(item)

    with pytest.raises(ValueError, match="1"):
        map_threads(work, range(1000), workers=2)
    assert began - {1} == ended and len(began) < 1000


def test_an_interrupt_waits_for_nothing() -> None:
    began, over = threading.Event(), threading.Event()

    def work(item: int) -> None:
        if item == 1:
            began.set()
            assert over.wait(60)
        elif item == 0:
            assert began.wait(60)
            # As if Ctrl-C had come: it is raised where the results are awaited.
            raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            map_threads(work, range(2), workers=2)
        assert not over.is_set()
    finally:
        over.set()
