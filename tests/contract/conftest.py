"""The process that forks runs to be killed, one for all flows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from serial_runs import Runs


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    started = Runs()
    yield started
    started.close()
