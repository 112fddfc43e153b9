"""Base of packed data sets: samples by number, padding samples, batches, and resumable iteration."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.errors import ConfigError, InputError
from tasks.sft.datasets.access import Bin
from tasks.sft.datasets.collate import Collate, StaticShape
from tasks.sft.datasets.order import EpochOrder, SampleMapping


class SftDataset(ABC):
    """Packed bins as samples.

    A sample is `{"input_ids": int32[n], "seq_boundaries": int64[sequences + 1], "loss_mask": uint8[n]}`, read-only
    views of the data. A negative number is a padding sample: the sample that Python's indexing would return, with a
    mask of zeros; the sign is checked before the mapping, which would hide it.

    `max_num_samples` sets the number of samples: the bins in a seeded order, epoch after epoch, each a permutation.
    Without it, sample i is bin i.

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
        if self.max_num_samples is not None:
            number = self._mapped(number)
        ids, boundaries, mask = self.bin(number)
        if is_padding:
            mask = np.zeros_like(mask)
        return {"input_ids": ids, "seq_boundaries": boundaries, "loss_mask": mask}

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

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield all samples in order; the first time after `load_state_dict`, from the saved position."""
        start, self._start = self._start, 0
        for position in range(start, len(self)):
            self._position = position + 1
            yield self[position]
        self._position = 0

    def state_dict(self) -> dict[str, int]:
        """Return the position of iteration as plain numbers.

        It only covers `for sample in dataset`. Samples that a loader fetches by number are counted by its sampler, or
        by `tasks.sft.datasets.loader.PackedLoader`.
        """
        return {"position": self._position, "samples": len(self), "seed": self.seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Resume where `state` was saved.

        Raises:
            ConfigError: `other_state`, it belongs to another data set.
        """
        expected = {**self.state_dict(), "position": state.get("position")}
        if state != expected or not 0 <= state["position"] <= len(self):
            raise ConfigError(f"the state {state} does not belong to this data set", code="other_state")
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
