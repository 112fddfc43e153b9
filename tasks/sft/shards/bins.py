"""A block of packed bins in flat arrays: the result of gathering, and the input of writers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Bins:
    """Consecutive bins as flat arrays.

    Attributes:
        input_ids: int32[tokens].
        loss_mask: uint8[tokens], shifted.
        token_offsets: int64[bins + 1], where each bin starts in the two arrays above.
        seq_starts: int32[sequences], starts within the bin.
        seq_offsets: int64[bins + 1], where each bin starts in `seq_starts`.
    """

    input_ids: NDArray[np.int32]
    loss_mask: NDArray[np.uint8]
    token_offsets: NDArray[np.int64]
    seq_starts: NDArray[np.int32]
    seq_offsets: NDArray[np.int64]

    @property
    def num_bins(self) -> int:
        return len(self.token_offsets) - 1
