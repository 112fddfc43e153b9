"""Imported before anything that imports prefect or transformers: no network, no logs, as in tests/conftest.py."""

import os

from tasks.runtime.settings import quiet_environment

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Its threads would not survive a fork.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
quiet_environment()
