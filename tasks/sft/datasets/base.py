"""Base of packed data sets: samples by number, padding samples, batches, and resumable iteration."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.errors import ConfigError, InputError
from schemas.verdict import Verdict
from tasks.sft.datasets.access import Bin
from tasks.sft.datasets.collate import Collate, StaticShape
from tasks.sft.datasets.order import EpochOrder, SampleMapping, SampleNumber
from tasks.sft.datasets.releases import Release
from tasks.sft.shards.validate import validate_shards


class SftDataset(ABC):
    """Packed bins as samples.

    A sample is `{"input_ids": int32[n], "seq_boundaries": int64[sequences + 1], "loss_mask": uint8[n]}`, read-only
    views of the data that compare with lists, see `Values`. A negative number is a padding sample: the sample that
    Python's indexing would return, with a mask of zeros; the sign is checked before the mapping, which would hide it.

    `max_num_samples` sets the number of samples: the bins in a seeded order, pass after pass, each a permutation.
    Without it, sample i is bin i.

    The order goes on from epoch to epoch: epoch 1 starts with the sample after the last one of epoch 0, so over the
    epochs each bin is read as often as every other, plus or minus one. `dataset[i]` is sample i of the epoch chosen
    with `set_epoch`, or of the number's own epoch if it is a `SampleNumber`, as the ones from `PackedSampler` are.

    Arguments of every data set:

    * `max_num_samples`, `seed`: see above.
    * `window`: bins shuffled together, see tasks/sft/datasets/order.py; about as many are kept in memory.

    Threads may share a data set, and so may processes, by forking or pickling.
    """

    collate_fn: Collate

    def __init__(self, max_num_samples: int | None, seed: int, window: int) -> None:
        if max_num_samples is not None and max_num_samples < 0:
            raise ConfigError(
                f"{max_num_samples} is out of range; allowed: 0 or more", where="max_num_samples"
            )
        self.max_num_samples, self.seed, self.window = max_num_samples, seed, window
        self.epoch = 0
        self._mapping: SampleMapping | None = None
        self._start = self._position = 0

    @property
    @abstractmethod
    def num_bins(self) -> int:
        """Number of bins, or of samples in a blend, before any mapping."""

    @property
    @abstractmethod
    def bin_groups(self) -> NDArray[np.int64]:
        """int64[groups + 1], first 0: the bins that are read together."""

    @abstractmethod
    def bin(self, number: int) -> Bin:
        """Return `input_ids`, `seq_boundaries`, `loss_mask` of the bin `number`, 0 <= number < num_bins."""

    @property
    @abstractmethod
    def paths(self) -> tuple[Path | str, ...]:
        """The shards, in order: local paths, or URIs."""

    @abstractmethod
    def close(self) -> None:
        """Close all files; the next access opens them again."""

    def __len__(self) -> int:
        return self.num_bins if self.max_num_samples is None else self.max_num_samples

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        length = len(self)
        is_padding = index < 0
        if not length or index >= length:
            raise IndexError(f"sample {index} of {length}")
        # Trainers fill up a global batch with -1, -2 and so on, even if there are fewer samples.
        number = int(index) % length if is_padding else int(index)
        epoch = index.epoch if isinstance(index, SampleNumber) else self.epoch
        ids, boundaries, mask = self.drawn(number, epoch)
        if is_padding:
            mask = np.zeros_like(mask)
            mask.flags.writeable = False
        return {"input_ids": ids, "seq_boundaries": boundaries, "loss_mask": mask}

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of samples asked for by plain numbers, and start its iteration at the beginning.

        Raises:
            ConfigError: the epoch is negative.
        """
        if epoch < 0:
            raise ConfigError(f"{epoch} is out of range; allowed: 0 or more", where="epoch")
        if epoch != self.epoch:
            self.epoch, self._start, self._position = epoch, 0, 0

    @property
    def epochs_differ(self) -> bool:
        """Whether the samples of an epoch depend on the epoch; if not, each is all bins once."""
        return self.max_num_samples is not None

    def drawn(self, sample: int, epoch: int) -> Bin:
        """Return the bin that is a sample of an epoch, 0 <= sample < len(self)."""
        if self.max_num_samples is None:
            return self.bin(sample)
        return self.bin(self._mapped(epoch * len(self) + sample))

    @property
    def sample_groups(self) -> NDArray[np.int64]:
        """int64[groups + 1]: the samples that are stored close together, for samplers."""
        if self.max_num_samples is None:
            return self.bin_groups
        return np.append(np.arange(0, len(self), self.window), len(self))

    def _mapped(self, sample: int) -> int:
        if self._mapping is None:
            if not self.num_bins:
                raise InputError(
                    "there are no bins to map samples to", code="no_bins", where="max_num_samples"
                )
            self._mapping = SampleMapping(EpochOrder(self.bin_groups, self.seed, window=self.window))
        return self._mapping[sample]

    def validate(self) -> Verdict:
        """Check every row of every shard; call `raise_if_bad` of the verdict to fail on faults."""
        # A data set may be in a blend twice.
        paths = list(dict.fromkeys(self.paths))
        return validate_shards(paths, "folder", str(paths[0]))

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield the samples of the epoch in order; the first time after `load_state_dict`, from its position."""
        start, self._start = self._start, 0
        for position in range(start, len(self)):
            self._position = position + 1
            yield self[position]
        self._position = 0

    def state_dict(self) -> dict[str, int]:
        """Return epoch and position of iteration as plain numbers.

        It only covers `for sample in dataset`. Samples that a loader fetches by number are counted by its sampler, or
        by `tasks.sft.datasets.loader.PackedLoader`.
        """
        return {"epoch": self.epoch, "position": self._position, "samples": len(self), "seed": self.seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Resume where `state` was saved.

        Raises:
            ConfigError: `other_state`, it belongs to another data set.
        """
        epoch, position = state.get("epoch", 0), state.get("position")
        expected = {**self.state_dict(), "epoch": epoch, "position": position}
        if {"epoch": 0, **state} != expected or not 0 <= state["position"] <= len(self):
            raise ConfigError(f"the state {state} does not belong to this data set", code="other_state")
        self.set_epoch(epoch)
        self._start = self._position = state["position"]


def collate_of(
    tokenizer: Any,
    max_seq_length: int | None,
    return_cu_seqlen: bool,
    pad_cu_seqlens: bool,
    pack_metadata_file_path: str | os.PathLike[str] | None,
    pad_to_max_length: bool | None,
    pad_seq_length_to_mult: int,
    pad_seq_to_mult: int,
    release: str | Release,
) -> Collate:
    """Create the `Collate` for a data set's arguments.

    Raises:
        ConfigError: they contradict each other, or the pack metadata cannot be read.
    """
    if pad_cu_seqlens and pack_metadata_file_path is None:
        raise ConfigError(
            "padded cu_seqlens need the pack metadata (pack_metadata/{split}.json of a run)",
            where="pack_metadata_file_path",
        )
    return Collate(
        pad_id=_pad_id(tokenizer),
        max_seq_length=max_seq_length,
        pad_to_max_length=pad_cu_seqlens if pad_to_max_length is None else pad_to_max_length,
        pad_seq_length_to_mult=pad_seq_length_to_mult,
        pad_seq_to_mult=pad_seq_to_mult,
        return_cu_seqlen=return_cu_seqlen,
        release=release,
        static=StaticShape.read(pack_metadata_file_path)
        if pad_cu_seqlens and pack_metadata_file_path is not None
        else None,
    )


def _pad_id(tokenizer: Any) -> int:
    """Return the end-of-sequence id of a Megatron or transformers tokenizer; 0 without a tokenizer."""
    for name in ("eos_id", "eos_token_id"):
        value = getattr(tokenizer, name, None)
        if isinstance(value, int):
            return value
    if tokenizer is not None:
        raise ConfigError("the tokenizer has neither eos_id nor eos_token_id", where="tokenizer")
    return 0
