"""How the suite is spread over processes."""

from __future__ import annotations

import pytest


def test_groups_hold(request: pytest.FixtureRequest) -> None:
    """A file's tests share a process, and all that need a server share one: two servers at once are too slow.

    Some releases of pytest and xdist drop the groups silently; where they hold, they end the test's name.
    """
    in_worker = hasattr(request.config, "workerinput")
    assert not in_worker or request.node.nodeid.endswith(f"@{request.node.path}")
