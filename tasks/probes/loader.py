"""Export the readers of probe rows under the names that trainers import."""

from __future__ import annotations

from tasks.probes.training.crops import shift_targets
from tasks.probes.training.loader import build_probe_dataset
from tasks.probes.training.sampler import ProbeRowSampler
from tasks.probes.training.source import ProbeRowDataSource
from tasks.probes.training.tokens import TOKEN_FORMAT, VOCABULARY_SIZE

__all__ = [
    "TOKEN_FORMAT",
    "VOCABULARY_SIZE",
    "ProbeRowDataSource",
    "ProbeRowSampler",
    "build_probe_dataset",
    "shift_targets",
]
