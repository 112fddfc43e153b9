"""Imported before anything that imports prefect or transformers: no network, no logs, as in tests/conftest.py."""

import os

from tasks.runtime.settings import quiet_environment

os.environ.setdefault("HF_HUB_OFFLINE", "1")
quiet_environment()
