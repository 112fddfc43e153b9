from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from prefect_server import prefect_server


@pytest.fixture(scope="session")
def prefect_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real server, in force for this process and the ones it starts."""
    with prefect_server(tmp_path_factory.mktemp("prefect")) as url:
        yield url
