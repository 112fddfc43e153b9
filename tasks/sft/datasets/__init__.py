"""Packed data for trainers: data sets, batches, samplers. Importing this requires neither Prefect nor torch.

dataset = create_sft_dataset("runs-output/sft", split="train", tokenizer=tokenizer, max_seq_length=4096)
loader = PackedLoader(dataset, batch_size=8, num_workers=4)
for batch in loader:  # an epoch; the next loop is the next one, and a blend goes on where it was
    ...
"""

from __future__ import annotations

from tasks.sft.datasets.base import SftDataset
from tasks.sft.datasets.blend import BlendedDataset
from tasks.sft.datasets.collate import Collate, collate
from tasks.sft.datasets.factory import create_sft_dataset
from tasks.sft.datasets.loader import PackedLoader, PackedSampler
from tasks.sft.datasets.packed import (
    MultiShardDataset,
    PackedMemmapDataset,
    PackedNpyDataset,
    PackedParquetDataset,
)
from tasks.sft.datasets.releases import Release

__all__ = [
    "BlendedDataset",
    "Collate",
    "MultiShardDataset",
    "PackedLoader",
    "PackedMemmapDataset",
    "PackedNpyDataset",
    "PackedParquetDataset",
    "PackedSampler",
    "Release",
    "SftDataset",
    "collate",
    "create_sft_dataset",
]
