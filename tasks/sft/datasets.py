"""Packed data for trainers: data sets, batches, samplers. Importing this needs neither Prefect nor torch.

dataset = create_sft_dataset("runs-output/sft", split="train", tokenizer=tokenizer, max_seq_length=4096)
loader = PackedLoader(dataset, batch_size=8, num_workers=4)
"""

from __future__ import annotations

from tasks.sft.collate import Collate, collate
from tasks.sft.dataset_base import SftDataset
from tasks.sft.dataset_blend import BlendedDataset
from tasks.sft.dataset_factory import create_sft_dataset
from tasks.sft.dataset_packed import (
    MultiShardDataset,
    PackedMemmapDataset,
    PackedNpyDataset,
    PackedParquetDataset,
)
from tasks.sft.sampler import PackedLoader, PackedSampler

__all__ = [
    "BlendedDataset",
    "Collate",
    "MultiShardDataset",
    "PackedLoader",
    "PackedMemmapDataset",
    "PackedNpyDataset",
    "PackedParquetDataset",
    "PackedSampler",
    "SftDataset",
    "collate",
    "create_sft_dataset",
]
