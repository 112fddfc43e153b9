"""Read and write arrays as `.npy` files, without pickle."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from schemas.run import FileRecord
from tasks.storage.atomic import write_file
from tasks.storage.reading import open_regular


def write_array(path: Path, array: NDArray[Any], root: Path) -> FileRecord:
    """Write an array as `.npy` (no pickle) atomically; return its record relative to `root`."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version=(1, 0), allow_pickle=False)
    return write_file(path, buffer.getvalue()).record(root)


def read_array(path: Path) -> NDArray[Any]:
    """Map a `.npy` file read-only; never unpickle."""
    os.close(open_regular(path))
    array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


def map_array(file: BinaryIO, dtype: str, offset: int, shape: tuple[int, ...]) -> NDArray[Any]:
    """Map an array that begins `offset` bytes into an open file, read-only."""
    array: NDArray[Any] = np.memmap(file, dtype, "r", offset, shape)
    return array
