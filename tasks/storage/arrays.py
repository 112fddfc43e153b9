"""Arrays as `.npy` files, without pickle."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from schemas.run import FileRecord
from tasks.storage.atomic import write_file


def write_array(path: Path, array: NDArray[Any], root: Path) -> FileRecord:
    """Write an array as `.npy` (no pickle) atomically; returns its record relative to `root`."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version=(1, 0), allow_pickle=False)
    return write_file(path, buffer.getvalue()).record(root)


def read_array(path: Path) -> NDArray[Any]:
    """A `.npy` file as a read-only memory map; never unpickles."""
    array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


def lengths_to_offsets(lengths: ArrayLike) -> NDArray[np.int64]:
    """int64[n + 1]: where each of n lists begins in their concatenation, and its end.

    >>> lengths_to_offsets([2, 0, 3]).tolist()
    [0, 2, 2, 5]
    """
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))
