"""Export the readers of probe rows under the names that trainers import."""

from __future__ import annotations

from tasks.probes.training.loader import build_probe_dataset
from tasks.probes.training.sampler import ProbeRowSampler
from tasks.probes.training.source import ProbeRowDataSource

__all__ = ["ProbeRowDataSource", "ProbeRowSampler", "build_probe_dataset"]
