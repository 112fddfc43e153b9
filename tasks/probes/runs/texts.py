"""Kernels for texts that measurements refer to by number."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def used_texts(codes: NDArray[np.int32], texts: pa.StringArray) -> tuple[NDArray[np.int32], pa.StringArray]:
    """Return the codes of the texts that are used, in their order, and these."""
    used = np.zeros(len(texts), bool)
    used[codes] = True
    if used.all():
        return codes, texts
    return (np.cumsum(used, dtype=np.int32) - 1)[codes], texts.filter(pa.array(used))


def text_buffers(texts: pa.StringArray) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Return the ends of the texts, from 0, and their bytes."""
    _, offsets, data = texts.buffers()
    if not len(texts):
        return np.zeros(1, np.int32), np.zeros(0, np.uint8)
    ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    everything = np.frombuffer(data or b"", np.uint8)
    return ends - ends[0], everything[ends[0] : ends[-1]]
